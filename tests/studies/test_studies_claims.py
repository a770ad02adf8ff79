"""Test the verdicts on the paper's claims with hand-made numbers."""

import csv
from functools import partial

import pytest

from fairbench_studies.dlpm.claims import fairness, quanta, scaling, throughput
from fairbench_studies.dlpm.claims.table import (
    AT_DEFAULTS,
    AT_RERUN,
    CLAIMS,
    claims_markdown,
    judge_all,
    write,
)
from fairbench_studies.dlpm.fig4 import Timings
from fairbench_studies.kit.claims_page import Judged, Setting
from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.kit.parts import Claim, Part, in_every, number, score
from tests.figure_helpers import cell

HOLDS, REVERSED, UNCLEAR, UNCONTENDED, OFF, UNTESTABLE = Outcome


def told(parts):
    """Return the verdict on each part."""
    return [part.outcome for part in parts]


def named(parts):
    return {part.text: part.outcome for part in parts}


def test_every_claim_of_the_paper_is_judged_once():
    assert [claim.number for claim in CLAIMS] == [*range(1, 18), *range(36, 50)]


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([HOLDS, HOLDS], "2 of 2 parts hold"),
        ([HOLDS, REVERSED, UNCLEAR, OFF], "1 of 4 parts hold, 1 reversed, 1 off, 1 inconclusive"),
        ([HOLDS, UNCONTENDED], "1 of 1 part holds"),
        ([UNCONTENDED, UNCONTENDED], "not contended"),
        ([UNTESTABLE], "not testable"),
    ],
)
def test_the_score_counts_the_parts_that_were_tested(outcomes, expected):
    assert score([Part("x", one, "") for one in outcomes]) == expected


def test_a_number_holds_within_its_band_and_a_shape_in_every_seed():
    assert [number("n", value, 1, 2, "").outcome for value in (1, 2, 2.1, float("nan"))] == [
        HOLDS,
        HOLDS,
        OFF,
        UNCLEAR,
    ]
    shapes = ([True, True], [True, False], [False, False])
    assert told(in_every("s", found, "") for found in shapes) == [HOLDS, UNCLEAR, REVERSED]
    assert in_every("s", [True, False], "so").ours == "so (in 1 of 2 seeds)"


def rates(**by_dp):
    """Return two schedulers' results. ``dp8=(2.0, 1.0)`` are the service rates of D2LPM and VTC."""
    return [
        cell(name, dp=int(dp[2:]), service_rate_tok_s=rate)
        for dp, pair in by_dp.items()
        for name, rate in zip(("d2lpm", "vtc"), pair, strict=True)
    ]


OVER_VTC = partial(throughput.judge_gain, below="vtc", paper=2.87, low=1.8, high=4.0)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (rates(dp2=(1.1, 1.0), dp8=(2.9, 1.0)), [HOLDS, HOLDS]),
        (rates(dp2=(1.1, 1.0), dp8=(5.0, 1.0)), [HOLDS, OFF]),
        (rates(dp2=(0.9, 1.0), dp8=(2.9, 1.0)), [UNCLEAR, HOLDS]),
        (rates(dp2=(0.9, 1.0), dp8=(0.8, 1.0)), [REVERSED, OFF]),
        (rates(dp2=(0.9, 1), dp3=(2.9, 1), dp4=(2, 1), dp8=(2, 1), dp16=(2, 1)), [HOLDS, HOLDS]),
        (rates(dp1=(0.9, 1.0)), [REVERSED, OFF]),
    ],
)
def test_a_gain_is_a_direction_and_a_size(cells, expected):
    assert told(OVER_VTC(cells)) == expected


@pytest.mark.parametrize(
    ("alone", "several", "expected"),
    [
        (0.9, 2.9, [HOLDS, REVERSED, HOLDS]),
        (1.1, 2.9, [HOLDS, HOLDS, HOLDS]),
        (2.9, 0.9, [REVERSED, HOLDS, HOLDS]),  # the largest gain counts one replica, too
    ],
)
def test_one_replica_is_judged_apart(alone, several, expected):
    parts = OVER_VTC(rates(dp1=(alone, 1.0), dp4=(several, 1.0)))
    assert told(parts) == expected
    assert [part.text for part in parts[:2]] == [
        "D2LPM above VTC, on several replicas", "D2LPM above VTC, on one replica",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ({"long-qa": 0.7, "tot": 0.9}, [HOLDS]),
        ({"long-qa": 1.2, "tot": 0.9, "judge": 1.0}, [REVERSED]),
        ({"tot": 0.9, "judge": 1.0}, []),
    ],
)
def test_long_documents_are_the_worst_case_if_the_least_ratio_is_theirs(gains, expected):
    cells = [
        cell(name, workload=workload, service_rate_tok_s=rate)
        for workload, gain in gains.items()
        for name, rate in (("d2lpm", gain), ("preble", 1.0))
    ]
    assert told(throughput.judge_worst_case(cells)) == expected


def test_a_gain_has_other_measures_that_do_not_decide():
    cells = [
        cell("d2lpm", service_rate_tok_s=20.0, output_rate_tok_s=9.0, time_to_100pct_s=50.0),
        cell("vtc", service_rate_tok_s=10.0, output_rate_tok_s=10.0, time_to_100pct_s=150.0),
    ]
    above, _ = OVER_VTC(cells)
    assert above.outcome is HOLDS
    assert above.beside == {
        "service rate while all are active": UNCLEAR, "output tok/s": REVERSED, "makespan": HOLDS,
    }  # fmt: skip
    assert above.ours == "in 1 of 1, from 2.00x (tot s1 at 1) to 2.00x (tot s1 at 1)"


def test_without_a_contended_configuration_nothing_is_tested():
    cells = [
        cell("d2lpm", service_rate_tok_s=20.0),
        cell("vtc", service_rate_tok_s=10.0, contended=False),
    ]
    above, size = OVER_VTC(cells)
    assert (above.outcome, size.outcome) == (UNCONTENDED, UNCLEAR)
    assert above.elsewhere == "not contended: tot s1 at 1"


def test_a_configuration_with_several_pools_is_not_judged():
    pools = [
        cell(name, workload="long-qa", service_rate_tok_s=rate)
        for name, rate in (("d2lpm", 1.0), ("vtc", 9.0), ("d2lpm", 1.0), ("vtc", 9.0))
    ]
    assert told(OVER_VTC([*pools, *rates(dp1=(2.0, 1.0))])) == [HOLDS, HOLDS]


@pytest.mark.parametrize(
    ("hits", "rate_at_8", "expected"),
    [
        ((0.95, 0.5), 150.0, [HOLDS, HOLDS, HOLDS]),
        ((0.80, 0.5), 150.0, [HOLDS, OFF, HOLDS]),
        ((0.50, 0.5), 180.0, [UNCLEAR, OFF, HOLDS]),
        ((0.50, 0.9), 250.0, [REVERSED, OFF, REVERSED]),
    ],
)
def test_lpm_must_lose_hits_and_throughput_from_4_to_8(hits, rate_at_8, expected):
    place = {"workload": "tot", "scenario": "s2"}
    cells = [
        cell("lpm", dp=4, service_rate_tok_s=100.0, cache_hit_rate=hits[0], **place),
        cell("lpm", dp=8, service_rate_tok_s=rate_at_8, cache_hit_rate=hits[1], **place),
    ]
    assert told(throughput.judge_scaling(cells)) == expected


def test_a_point_that_the_paper_leaves_out_is_not_testable():
    place = {"workload": "tot", "scenario": "s2", "dp": 8}
    cells = [
        cell("preble", time_to_100pct_s=None, **place),
        cell("lpm", time_to_100pct_s=(1000.0, 1100.0), seeds=(0, 1), **place),
    ]
    (part,) = throughput.judge_missing(cells)
    assert part.outcome is UNTESTABLE
    assert part.ours == (
        "Preble at dp 1: n/a; tot s2 at 8 all done: preble not always, lpm after 1,050 s"
    )


@pytest.mark.parametrize(
    ("there", "elsewhere", "expected"),
    [
        (0.8, 1.0, [HOLDS, HOLDS]),
        (1.1, 1.0, [HOLDS, REVERSED]),
        (0.8, 0.9, [REVERSED, HOLDS]),
        (1.1, 0.9, [REVERSED, REVERSED]),
    ],
)
def test_preble_wins_in_only_one_configuration(there, elsewhere, expected):
    cells = []
    for place, ratio in ((("long-qa", "s2", 8), there), (("tot", "s1", 4), elsewhere)):
        where = dict(zip(("workload", "scenario", "dp"), place, strict=True))
        cells += [cell("preble", service_rate_tok_s=100.0, **where)]
        cells += [cell("d2lpm", service_rate_tok_s=100.0 * ratio, **where)]
    assert told(throughput.judge_preble(cells)) == expected


def test_both_forms_of_preble_are_judged_and_named():
    cells = [
        cell("preble", service_rate_tok_s=200.0),
        cell("preble-code", service_rate_tok_s=50.0),
        cell("d2lpm", service_rate_tok_s=100.0),
    ]
    assert named(throughput.judge_preble(cells)) == {
        "D2LPM at least 0.95x Preble": REVERSED,
        "D2LPM at least 0.95x Preble's code": HOLDS,
    }


def test_preble_must_win_beyond_doubt():
    """Preble wins on average, but one of three seeds shows the opposite."""
    there = {"workload": "long-qa", "scenario": "s2", "dp": 8, "seeds": (0, 1, 2)}
    cells = [
        cell("preble", service_rate_tok_s=(100.0, 100.0, 100.0), **there),
        cell("d2lpm", service_rate_tok_s=(70.0, 80.0, 110.0), **there),
        cell("preble", service_rate_tok_s=100.0),
        cell("d2lpm", service_rate_tok_s=110.0),
    ]
    assert told(throughput.judge_preble(cells)) == [HOLDS, UNCLEAR]


def indices(*values):
    names = ("vtc", "d2lpm", "preble", "lpm")
    return [
        cell(name, jain_index_paper_window=value) for name, value in zip(names, values, strict=True)
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.95, 0.94, 0.7, 0.6), [HOLDS, HOLDS, HOLDS, HOLDS]),
        ((0.95, 0.75, 0.7, 0.6), [HOLDS, HOLDS, HOLDS, REVERSED]),
        ((0.90, 0.94, 0.7, 0.6), [REVERSED, HOLDS, HOLDS, HOLDS]),
        ((0.95, 0.60, 0.7, 0.6), [HOLDS, REVERSED, HOLDS, REVERSED]),
    ],
)
def test_the_order_of_jains_index_is_judged_step_by_step(values, expected):
    """The steps are VTC - D2LPM, D2LPM - Preble, Preble - LPM. D2LPM's nearness to VTC follows."""
    assert told(fairness.judge_jain(indices(*values))) == expected


def test_nearness_is_judged_by_configuration_and_by_medians():
    """D2LPM is near VTC twice and near Preble twice. The medians are nearer to VTC."""
    cells = []
    for dp, values in enumerate(
        (
            (0.90, 0.89, 0.5, 0.4),
            (0.90, 0.89, 0.5, 0.4),
            (0.9, 0.7, 0.6, 0.5),
            (0.9, 0.7, 0.6, 0.5),
        ),
        start=2,
    ):
        for name, value in zip(("vtc", "d2lpm", "preble", "lpm"), values, strict=True):
            cells.append(cell(name, dp=dp, jain_index_paper_window=value))
    part = fairness.judge_jain(cells)[-1]
    assert part.outcome is UNCLEAR
    assert part.ours == "in 2 of 4; medians 0.105 from VTC, 0.245 from Preble"
    assert part.under == {"by configuration": UNCLEAR, "by medians": HOLDS}


def waits(**by_scheduler):
    cells = [cell("d2lpm", victim_p50_s=1.0, victim_p99_s=1.0)]
    for name, (p50, p99) in by_scheduler.items():
        cells.append(cell(name, victim_p50_s=p50, victim_p99_s=p99))
    return fairness.judge_latency(cells)


def test_latency_is_a_direction_a_mean_and_an_extreme_for_each_scheduler():
    found = named(waits(preble=(2.0, 5.0), lpm=(3.0, 6.0), vtc=(2.0, 30.0)))
    assert found == {
        "they wait longer under Preble": HOLDS, "they wait longer under RR+LPM": HOLDS,
        "they wait longer under VTC": HOLDS,
        "RR+LPM the longest on average": REVERSED,  # VTC's 7.7x
        "Preble: on average 2.90x (within 40%)": HOLDS, "Preble: up to 7.18x (4 to 12)": HOLDS,
        "RR+LPM: on average 4.06x (within 40%)": HOLDS, "RR+LPM: up to 9.55x (4 to 12)": HOLDS,
        "VTC: on average 2.98x (within 40%)": OFF, "VTC: up to 7.96x (4 to 12)": OFF,
    }  # fmt: skip


def test_latencies_are_averaged_as_ratios():
    """The geometric mean of 50x and 2x is 10x. Uncontended configurations do not count."""
    cells = []
    for dp, factor, contended in ((1, 50.0, True), (2, 2.0, True), (4, 1000.0, False)):
        cells.append(cell("d2lpm", dp=dp, victim_p50_s=1.0, victim_p99_s=1.0))
        for name in ("preble", "lpm", "vtc"):
            both = {"victim_p50_s": factor, "victim_p99_s": factor}
            cells.append(cell(name, dp=dp, contended=contended, **both))
    ours = {part.text: part.ours for part in fairness.judge_latency(cells)}
    assert ours["VTC: on average 2.98x (within 40%)"] == (
        "10.00x (geometric mean), 26.00x (arithmetic mean)"
    )
    assert ours["VTC: up to 7.96x (4 to 12)"] == "50.00x"
    assert ours["they wait longer under VTC, on several replicas"] == "in 1 of 1"
    assert ours["they wait longer under VTC, on one replica"] == "in 1 of 1"


@pytest.mark.parametrize(
    ("factors", "outcome", "under"),
    [
        ((2.0, 3.0), HOLDS, [HOLDS, HOLDS]),
        ((1.0, 10.0), HOLDS, [HOLDS, OFF]),
        ((1.0, 2.7), OFF, [OFF, HOLDS]),
    ],
)
def test_a_mean_is_judged_by_both_kinds_and_the_geometric_decides(factors, outcome, under):
    part = next(
        one
        for one in waits(preble=factors, lpm=(9.0, 9.0))
        if one.text.startswith("Preble: on average")
    )
    assert (part.outcome, list(part.under.values())) == (outcome, under)


def swept(part, scheduler, scenario, points):
    return [
        cell(
            scheduler, scenario=scenario, settings={part: values}, service_rate_tok_s=rate,
            jain_index=jain, jain_index_paper_window=jain,
        )
        for values, rate, jain in points
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rates_and_jains", "expected"),
    [
        (((90, 0.855), (110, 0.83)), [HOLDS, HOLDS, HOLDS]),
        (((90, 0.855), (110, 0.70)), [HOLDS, HOLDS, OFF]),
        (((90, 0.855), (99, 0.83)), [HOLDS, REVERSED, HOLDS]),
        (((120, 0.855), (110, 0.83)), [REVERSED, HOLDS, HOLDS]),
    ],
)
def test_a_worker_quantum_raises_throughput_above_all_others(rates_and_jains, expected):
    points = [
        ({"worker_quantum": quantum}, float(rate), jain)
        for quantum, (rate, jain) in zip((2000, 40000), rates_and_jains, strict=True)
    ]
    cells = swept("d2lpm", "d2lpm", "s2", points)
    cells += [cell("lpm", scenario="s2", service_rate_tok_s=100.0, jain_index=0.5)]
    assert told(quanta.judge_worker_quantum(cells)) == expected


@pytest.mark.parametrize(("least", "expected"), [(0.995, HOLDS), (0.95, OFF)])
def test_well_behaved_clients_share_equally_and_gain_from_the_quantum(least, expected):
    points = [({"worker_quantum": 2000}, 1.0, 1.0), ({"worker_quantum": 40000}, 2.0, least)]
    cells = swept("d2lpm", "d2lpm", "none", points)
    cells += [cell("vtc", scenario="none", service_rate_tok_s=3.0)]
    assert told(quanta.judge_all_well_behaved(cells)) == [expected, HOLDS, REVERSED]


@pytest.mark.parametrize(
    ("rates_and_jains", "expected"),
    [
        (((100, 0.95), (105, 0.90), (110, 0.80)), [HOLDS, HOLDS, HOLDS, HOLDS]),
        (((100, 0.95), (90, 0.90), (110, 0.80)), [HOLDS, REVERSED, HOLDS, HOLDS]),
        (((100, 0.80), (95, 0.90), (90, 0.95)), [REVERSED, REVERSED, REVERSED, REVERSED]),
        (((100, 0.85), (105, 0.90), (110, 0.80)), [HOLDS, HOLDS, HOLDS, UNCLEAR]),
    ],
)
def test_a_quantum_trades_fairness_for_throughput(rates_and_jains, expected):
    points = [
        ({"quantum": 1000 * number}, float(rate), jain)
        for number, (rate, jain) in enumerate(rates_and_jains, start=1)
    ]
    assert told(quanta.judge_quantum(swept("dlpm", "dlpm", "s1", points))) == expected


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(110.0, 0.95), (140.0, 0.85)], [HOLDS, HOLDS]),
        ([(110.0, 0.75), (110.0, 0.71)], [REVERSED, HOLDS]),  # inside, but not dominated
        ([(90.0, 0.65), (140.0, 0.50)], [REVERSED, REVERSED]),  # LPM: 150, 0.7
    ],
)
def test_the_frontier_is_judged_against_the_line_and_the_ends(points, expected):
    cells = swept(
        "dlpm", "dlpm", "s1",
        [({"quantum": n}, rate, jain) for n, (rate, jain) in enumerate(points, start=1)],
    )  # fmt: skip
    for name, rate, jain in (("vtc", 100.0, 0.9), ("lpm", 150.0, 0.7)):
        both = {"jain_index": jain, "jain_index_paper_window": jain}
        cells.append(cell(name, service_rate_tok_s=rate, **both))
    assert told(quanta.judge_quantum(cells))[-2:] == expected
    joined = swept("dlpm", "dlpm", "s1", [({"quantum": 1, "join": "quantum"}, 500.0, 1.0)])
    assert quanta.judge_quantum([*cells, *joined]) == quanta.judge_quantum(cells)


def of_clients(dlpm, lpm, vtc, vtc_hits=(0.75, 0.76)):
    of = (("dlpm", dlpm, (0.9, 0.8)), ("lpm", lpm, (0.9, 0.9)), ("vtc", vtc, vtc_hits))
    return [
        cell(name, clients=number, service_rate_tok_s=rate, cache_hit_rate=hit)
        for name, rates, hits in of
        for number, rate, hit in zip((5, 50), rates, hits, strict=True)
    ]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (of_clients((100.0, 95.0), (100.0, 100.0), (50.0, 51.0)), [HOLDS, HOLDS, HOLDS, HOLDS]),
        (of_clients((100.0, 95.0), (100.0, 100.0), (50.0, 60.0)), [HOLDS, HOLDS, HOLDS, OFF]),
        (of_clients((100.0, 80.0), (100.0, 100.0), (50.0, 51.0)), [OFF, OFF, HOLDS, HOLDS]),
        (
            of_clients((100.0, 95.0), (100.0, 100.0), (110.0, 110.0)),
            [HOLDS, HOLDS, REVERSED, HOLDS],
        ),
    ],
)
def test_more_clients_cost_dlpm_little(cells, expected):
    assert told(scaling.judge_clients(cells)) == [*expected, HOLDS, HOLDS]


@pytest.mark.parametrize(
    ("hits", "expected", "shown"),
    [
        ((0.75, 0.78), [HOLDS, HOLDS], "75.0% to 78.0%"),
        ((0.5, 0.6), [HOLDS, OFF], "50.0% to 60.0%"),
        ((0.81, 0.82), [UNCLEAR, HOLDS], "81.0% to 82.0%"),  # DLPM has 80% with 50 clients
        ((0.95, 0.95), [REVERSED, HOLDS], "95.0% to 95.0%"),
    ],
)
def test_vtcs_hit_rate_is_low_with_any_number_of_clients(hits, expected, shown):
    parts = scaling.judge_clients(of_clients((100.0, 95.0), (100.0, 100.0), (50.0, 51.0), hits))
    assert told(parts[4:]) == expected
    assert parts[4].ours.endswith(shown)


def timings(at_200):
    """Return costs of ``at_200`` percent for 8 replicas and 200 queued requests, otherwise less."""
    points = [
        {"workers": workers, "waiting": waiting, "update_ms": 0.0, "synchronisation_ms": 0.0,
         "match_ms": cost, "dispatch_ms": 0.0, "decode_step_ms": 100.0}
        for workers, waiting, cost in ((1, 50, 1), (1, 200, 2), (8, 50, 10), (8, 200, at_200))
    ]  # fmt: skip
    return Timings("gpu/model/tp1/x", "a machine", 0, 5, points)


@pytest.mark.parametrize(
    ("at_200", "expected"),
    [(40, [HOLDS, HOLDS, HOLDS]), (80, [HOLDS, HOLDS, OFF]), (5, [HOLDS, REVERSED, OFF])],
)
def test_a_central_scheduler_costs_more_with_replicas_and_queue(at_200, expected, monkeypatch):
    monkeypatch.setattr(scaling, "OTHER_RUNS", 0)
    parts = scaling.judge_central(timings(at_200))
    assert told(parts) == expected
    assert parts[-1].ours == f"{at_200}% of a decode step"


@pytest.mark.parametrize(("others", "expected"), [(7, OFF), (1, UNCLEAR), (0, HOLDS)])
def test_all_known_runs_decide_about_the_size_of_a_measured_cost(others, expected, monkeypatch):
    """The judged run lies in the band, and the other runs lie outside."""
    monkeypatch.setattr(scaling, "OTHER_RUNS", others)
    assert scaling.judge_central(timings(40))[-1].outcome is expected


def test_the_other_runs_of_a_measured_cost_are_named_and_lie_outside_its_band():
    assert scaling.OTHER_PCT[0] > scaling.BAND_PCT[1]
    size = scaling.judge_central(timings(40))[-1]
    assert size.ours == "40% of a decode step, 71 to 135% in 7 other runs"


AUTHORS, TODAY = AT_RERUN, AT_DEFAULTS


def page():
    """Return a claim of two parts. Each setting has a part that holds, and a part was not run."""

    def judge(source):
        beside = {"makespan": REVERSED}
        return [
            Part("more", HOLDS, f"{source}x", beside),
            Part("much more", HOLDS if source == 3 else OFF, ""),
        ]

    claim = Claim(99, "more is more", "2x", "[DLPM] §1", "fig7", judge, "because")
    settings = [Setting(AUTHORS, {"fig7": 3}), Setting(TODAY, {"fig7": 2})]
    judged = [
        Judged(claim, {one.title: judge(one.sources["fig7"]) for one in settings}),
        Judged(Claim(100, "other", "1x", "[DLPM] §2", "fig1", judge, "why"), {}),
    ]
    return judged, settings


def test_the_page_begins_with_its_result(monkeypatch):
    monkeypatch.setattr(
        "fairbench_studies.dlpm.claims.table._basis", lambda source: f"basis {source}"
    )
    lines = claims_markdown(*page()).splitlines()
    assert lines[2].startswith(
        "At the rerun's settings 2 of 2 parts hold (0 reversed, 0 off, 0 inconclusive); at "
        "fairbench's defaults 1 of 2 parts hold (0 reversed, 1 off, 0 inconclusive). Of the 2 "
        "parts that are judged at both, 1 hold at the rerun's settings only and 0 at fairbench's "
        "defaults only. The rerun's server had a KV pool of 20,000 tokens"
    )
    assert lines[2].count(". ") == 2  # three sentences
    assert "a third party ran the authors' benchmark again" in lines[4]
    assert "long-qa is left out at the rerun's settings" in lines[6]
    assert "engine.batch_is_full" in lines[8]
    assert (
        "| 99 | more is more ([DLPM] §1) | 2x | 2 of 2 parts hold | 1 of 2 parts hold, 1 off |"
        in (lines)
    )
    assert "| 100 | other ([DLPM] §2) | 1x | not run | not run |" in lines
    assert (
        "| more | **holds**: 3x (by makespan reversed) | **holds**: 2x (by makespan reversed) |"
        in (lines)
    )
    assert "Reason for each part that does not hold: because." in lines
    assert "- at fairbench's defaults, fig7: basis 2" in lines
    assert not any(line.startswith("### 100") for line in lines)


def test_a_part_that_cannot_be_tested_is_not_counted_as_judged_at_both(monkeypatch):
    monkeypatch.setattr(
        "fairbench_studies.dlpm.claims.table._basis", lambda source: f"basis {source}"
    )
    (judged, other), settings = page()
    left_out = Part("left out", UNTESTABLE, "")
    parts = {title: [*some, left_out] for title, some in judged.parts.items()}
    text = claims_markdown([judged._replace(parts=parts), other], settings)
    assert "Of the 2 parts that are judged at both, 1 hold" in text


def test_the_page_is_written_as_files(tmp_path, monkeypatch):
    monkeypatch.setattr("fairbench_studies.dlpm.claims.table._basis", str)
    markdown, table = write(*page(), tmp_path / "results")
    assert markdown.read_text() == claims_markdown(*page())
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["number"], row["setting"], row["outcome"]) for row in rows] == [
        ("99", AUTHORS, "holds"), ("99", AUTHORS, "holds"),
        ("99", TODAY, "holds"), ("99", TODAY, "off"),
    ]  # fmt: skip
    (tmp_path / "results" / "claims-map.md").write_text("a map")
    assert "[claims-map.md](claims-map.md)" in write(*page(), tmp_path / "results")[0].read_text()


def test_a_setting_without_a_figure_judges_only_its_data():
    judged = judge_all([Setting(AUTHORS, {"fig4": timings(40)})])
    assert [one.claim.number for one in judged if one.parts] == [17]
