"""Test pairs by seed and tallies over configurations, by hand-made numbers."""

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench_studies.dlpm.claims.pairs import All, Pair, tally
from fairbench_studies.dlpm.claims.places import by_place, by_seed, contended
from fairbench_studies.kit.outcomes import Outcome, Seen, joined
from fairbench_studies.kit.tally import Tally
from tests.figure_helpers import cell

HOLDS, REVERSED, INCONCLUSIVE, UNCONTENDED, *_ = Outcome
FASTER = Pair("rate", "service_rate_tok_s", "d2lpm", "vtc")
FAIRER = Pair("index", "jain_index", "vtc", "d2lpm", 0.0, is_ratio=False)
SOONER = Pair("makespan", "time_to_100pct_s", "vtc", "d2lpm")
SEEDS = (0, 1, 2)
T_2 = 4.302652729911275  # 97.5% quantile of Student's t with 2 degrees of freedom


def at(d2lpm, vtc, metric="service_rate_tok_s", **more):
    return {
        name: by_seed(cell(name, seeds=tuple(range(len(values))), **{metric: values}, **more))
        for name, values in (("d2lpm", tuple(d2lpm)), ("vtc", tuple(vtc)))
    }


def test_a_ratio_is_paired_by_seed_and_averaged_as_logarithms():
    """Seeds differ tenfold, but ratios only by e^0.01, so differences of seeds do not matter."""
    ones = (1.0, 10.0, 100.0)
    more = [one * exp(log) for one, log in zip(ones, (0.19, 0.20, 0.21), strict=True)]
    seen = FASTER.seen(at(more, ones))
    half = T_2 * 0.01 / 3**0.5
    assert seen.outcome is HOLDS
    assert (seen.value, seen.low, seen.high) == pytest.approx(
        (exp(0.2), exp(0.2 - half), exp(0.2 + half))
    )


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        ((0.19, 0.20, 0.21), HOLDS),
        ((-0.19, -0.20, -0.21), REVERSED),
        ((0.1, 0.2, 0.3), INCONCLUSIVE),
        ((0.0, 0.0, 0.0), INCONCLUSIVE),
        ((0.01,), HOLDS),
        ((-0.01,), REVERSED),
        ((0.0,), INCONCLUSIVE),
    ],
)
def test_the_interval_must_lie_on_one_side(logs, expected):
    assert FASTER.seen(at(map(exp, logs), [1.0] * len(logs))).outcome is expected


def test_the_sign_follows_the_claim():
    runs = at((0.96, 0.96, 0.96), (1.0, 1.0, 1.0))
    nearly = Pair("rate", "service_rate_tok_s", "d2lpm", "vtc", 0.95)
    assert (FASTER.seen(runs).outcome, nearly.seen(runs).outcome) == (REVERSED, HOLDS)


def test_a_difference_is_not_a_ratio():
    seen = FAIRER.seen(at((0.80, 0.81, 0.82), (0.90, 0.91, 0.92), "jain_index"))
    assert (seen.outcome, seen.value) == (HOLDS, pytest.approx(0.1))


def test_only_common_seeds_are_paired():
    runs = at((2.0, 2.0, 2.0), (1.0, 1.0, 1.0))
    runs["vtc"] = {1: runs["vtc"][1]}
    assert FASTER.seen(runs) == Seen(HOLDS, 2.0, 2.0, 2.0)


def test_an_undefined_value_is_inconclusive():
    runs = at((2.0, 2.0, 2.0), (1.0, 1.0, 1.0))
    runs["vtc"] = {**runs["vtc"], 2: {**runs["vtc"][2], "service_rate_tok_s": None}}
    assert FASTER.seen(runs).outcome is INCONCLUSIVE


@pytest.mark.parametrize(
    ("d2lpm", "vtc", "outcome", "bound"),
    [(900.0, None, HOLDS, ">"), (None, 900.0, REVERSED, "<"), (None, None, INCONCLUSIVE, "")],
)
def test_an_unfinished_program_took_at_least_as_long_as_the_run(d2lpm, vtc, outcome, bound):
    """The run lasted 1,000 s."""
    seen = SOONER.seen(at((d2lpm,), (vtc,), "time_to_100pct_s"))
    assert (seen.outcome, seen.bound) == (outcome, bound)


def test_a_bound_on_the_wrong_side_is_inconclusive():
    """VTC's value is at least 500 s, but may be less than D2LPM's."""
    runs = at((900.0,), (500.0,), "time_to_100pct_s")
    runs["vtc"] = {0: {**runs["vtc"][0], "censored": ["time_to_100pct_s"]}}
    assert SOONER.seen(runs).outcome is INCONCLUSIVE


def test_a_configuration_counts_only_if_all_clients_competed():
    runs = at((2.0,), (1.0,))
    assert contended(runs.values())
    limited = {0: {**runs["vtc"][0], "queue_empty_share": 0.06}}
    assert FASTER.seen({**runs, "vtc": limited}).outcome is UNCONTENDED
    idle = "not contended: no client was short of service"
    unhurt = {0: {**runs["vtc"][0], "notes": {"min_entitlement_ratio": idle}}}
    assert FASTER.seen({**runs, "vtc": unhurt}).outcome is UNCONTENDED
    others = {**runs, "lpm": limited}
    assert FASTER.seen(others).outcome is HOLDS  # not compared in this test


@pytest.mark.parametrize(("shares", "competed"), [((0.0, 0.1), True), ((0.01, 0.1), False)])
def test_the_time_of_empty_queues_counts_on_average(shares, competed):
    runs = at((2.0, 2.0), (1.0, 1.0))
    vtc = {n: {**runs["vtc"][n], "queue_empty_share": share} for n, share in enumerate(shares)}
    assert contended([runs["d2lpm"], vtc]) is competed
    assert not contended([{0: {**runs["vtc"][0], "queue_empty_share": None}}])


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((HOLDS, HOLDS), HOLDS),
        ((HOLDS, INCONCLUSIVE), INCONCLUSIVE),
        ((REVERSED, INCONCLUSIVE), REVERSED),
        ((REVERSED, UNCONTENDED), UNCONTENDED),
    ],
)
def test_several_conditions_hold_together(parts, expected):
    assert joined(parts) is expected


def test_all_pairs_of_an_order_are_compared():
    order = All("order", (FAIRER, FASTER))
    runs = {
        "vtc": by_seed(cell("vtc", jain_index=0.9, service_rate_tok_s=1.0)),
        "d2lpm": by_seed(cell("d2lpm", jain_index=0.8, service_rate_tok_s=2.0)),
    }
    assert order.seen(runs).outcome is HOLDS
    assert order.compared == {"d2lpm", "vtc"}


def five_places():
    """Return five configurations, in which the claim holds at 1 and 2 replicas.

    It is reversed at 4, inconclusive at 8, and uncontended at 16.
    """
    logs = {1: (0.1, 0.1, 0.1), 2: (0.2, 0.2, 0.2), 4: (-0.3, -0.3, -0.3), 8: (0.0, 0.1, 0.3)}
    cells = []
    for dp, of_seeds in ({**logs, 16: (0.9, 0.9, 0.9)}).items():
        with_gain = tuple(map(exp, of_seeds))
        cells.append(cell("d2lpm", dp=dp, seeds=SEEDS, service_rate_tok_s=with_gain))
        ones = {"service_rate_tok_s": (1.0, 1.0, 1.0), "contended": dp < 16}
        cells.append(cell("vtc", dp=dp, seeds=SEEDS, **ones))
    cells.append(cell("vtc", dp=32, service_rate_tok_s=1.0))  # without a run to compare
    return tally(FASTER, by_place(cells))


def test_a_tally_counts_contended_configurations():
    found = five_places()
    assert (found.holds, found.counted) == (2, 4)
    assert found.score == "holds in 2 of 4 (reversed in 1, inconclusive in 1)"
    assert found.extremes == "from 0.74x (tot s1 at 4) to 1.22x (tot s1 at 2)"
    assert found.elsewhere == (
        "reversed: tot s1 at 4; inconclusive: tot s1 at 8; not contended: tot s1 at 16"
    )


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ((HOLDS,) * 4 + (REVERSED,), HOLDS),
        ((HOLDS,) * 3 + (REVERSED,), INCONCLUSIVE),
        ((HOLDS,) * 3 + (INCONCLUSIVE,), HOLDS),
        ((HOLDS,) * 3 + (INCONCLUSIVE,) * 4, INCONCLUSIVE),
        ((HOLDS,) * 3 + (UNCONTENDED,) * 4, HOLDS),
        ((REVERSED,) * 4 + (INCONCLUSIVE,), REVERSED),
        ((INCONCLUSIVE,) * 3, INCONCLUSIVE),
        ((UNCONTENDED,) * 3, UNCONTENDED),
    ],
)
def test_a_part_is_judged_by_the_decided_configurations(outcomes, expected):
    assert Tally("rate", dict(enumerate(map(Seen, outcomes)))).outcome() is expected


@given(st.lists(st.sampled_from([HOLDS, REVERSED, INCONCLUSIVE, UNCONTENDED]), max_size=12))
def test_a_mostly_reversed_part_never_holds_and_vice_versa(outcomes):
    told = Tally("rate", dict(enumerate(map(Seen, outcomes)))).outcome()
    swapped = [{HOLDS: REVERSED, REVERSED: HOLDS}.get(one, one) for one in outcomes]
    opposite = Tally("rate", dict(enumerate(map(Seen, swapped)))).outcome()
    assert opposite is {HOLDS: REVERSED, REVERSED: HOLDS}.get(told, told)
    if told is HOLDS:
        assert outcomes.count(HOLDS) >= 4 * outcomes.count(REVERSED)
