"""Test the comparison of two stored experiments, and its printed table."""

import json

import pytest

from fairbench.errors import DataError, UsageError
from fairbench.report.pair_table import contrast_text, shown_metrics
from fairbench.results.comparison import (
    ComparedRun,
    check_metrics,
    contrast,
    contrast_json,
    experiment_of,
    known_metrics,
    runs_below,
    sides_of,
)
from fairbench.results.significance import Decision, seeds_needed
from tests.gate.gate_helpers import store
from tests.results.comparison_helpers import stored

P95, P99, JAIN, DONE = "victim_p95_s", "victim_p99_s", "jain_index_actual", "time_to_90pct_s"


def sides(folder, *, seeds=(0, 1, 2), **by_scheduler):
    """Return one side per scheduler, each with the values of its metrics by seed."""
    runs = []
    for name, metrics in by_scheduler.items():
        for number, seed in enumerate(seeds):
            values = {key: one[number] for key, one in metrics.items()}
            run = stored(folder, {"scheduler": name, "seed": seed}, **values)
            runs.append(ComparedRun(run, experiment_of(run), run.summary))
    return sides_of(runs)


def rows(found):
    return {row.metric: row for row in found.metrics}


@pytest.fixture
def pair(tmp_path):
    vtc = {P99: (8.0, 20.0, 9.0), JAIN: (0.9, 0.8, 0.85), DONE: (100.0, None, 90.0)}
    lpm = {
        P99: (8.8, 22.2, 9.9),  # ratios of 1.1, 1.11 and 1.1
        JAIN: (0.9, 0.8, 0.85),
        DONE: (90.0, 80.0, 85.0),
    }
    return contrast(*sides(tmp_path, vtc=vtc, lpm=lpm), [P99, JAIN, DONE, "victim_p50_s"])


def test_a_contrast_is_paired_by_seed_and_each_metric_is_decided_separately(pair):
    found = rows(pair)
    assert pair.seeds == (0, 1, 2)
    assert (pair.left_out, pair.unlike) == ((), ())
    assert found[P99].decision is Decision.WORSE  # although loads differ by a factor of 2.5
    assert found[P99].difference.mean == pytest.approx(1.3)
    assert found[P99].ratio == pytest.approx((1.1 * 1.11 * 1.1) ** (1 / 3))  # geometric
    assert found[JAIN].decision is Decision.SAME
    assert found[DONE].decision is Decision.INCONCLUSIVE
    assert found[DONE].difference.obstacle == "undefined in 1 of 3 seeds"
    # runs of the same seeds
    assert (found[DONE].baseline.raw, found[DONE].other.raw) == (95.0, 87.5)


def test_json_has_every_number_and_null_for_unknown_ones(pair):
    document = json.loads(json.dumps(contrast_json([pair]), allow_nan=False))
    (one,) = document["comparisons"]
    assert document["level"] == 0.95
    assert (one["baseline"], one["other"], one["seeds"]) == ("vtc", "lpm", [0, 1, 2])
    p99 = one["metrics"][P99]
    assert p99["low"] < p99["difference"] < p99["high"]
    assert p99["ratio_low"] < p99["ratio_to_baseline"] < p99["ratio_high"]
    assert one["metrics"][JAIN]["ratio_low"] is None  # only times have ratios
    assert (p99["decision"], p99["better"], p99["runs"]) == ("worse", "less", 3)
    assert one["metrics"][DONE]["undefined"] == 1
    assert one["metrics"][DONE]["more_seeds"] is None


@pytest.mark.parametrize(("smallest", "shown", "left_out"), [(300, P99, P95), (299, P95, P99)])
def test_a_contrast_shows_a_percentile_that_every_run_of_every_side_has(
    tmp_path, smallest, shown, left_out
):
    cohorts = {"victim_n": (400, smallest, 400), P95: (7.0, 7.0, 7.0)}
    found = shown_metrics(sides(tmp_path, vtc=cohorts, lpm=cohorts | {"victim_n": (400,) * 3}))
    assert shown in found
    assert left_out not in found


def test_an_undefined_metric_has_its_reason(tmp_path):
    notes = ({}, {DONE: "nobody finished"}, {})
    vtc = {DONE: (100.0, None, 90.0), "notes": notes}
    lpm = {DONE: (90.0, 80.0, 85.0), "notes": ({},) * 3}
    pair = contrast(*sides(tmp_path, vtc=vtc, lpm=lpm), [DONE])
    assert "undefined in 1 of 3 seeds: nobody finished" in " ".join(contrast_text([pair]).split())


@pytest.mark.parametrize("width", [100, 80, 60])
def test_the_table_fits_and_shows_the_decision(pair, width):
    text = contrast_text([pair], width=width)
    assert max(map(len, text.split("\n"))) <= width
    assert "…" not in text
    said = " ".join(text.split())
    assert "lpm against vtc, seeds 0 to 2" in said
    assert "+1.30 [1.09x, 1.12x]" in said  # e^(0.0983 +- 4.303 x 0.00522 / sqrt(3))
    assert "undefined in 1 of 3 seeds" in said
    for decision in ("worse", "same", "inconclusive"):
        assert decision in said
    assert ("columns that do not fit:" in said) is (width < 100)
    if width == 60:
        hidden = "columns that do not fit: difference in %, more seeds, both means"
        assert f"{hidden}; --json has all columns" in said
    if width == 100:
        assert "12.3 13.6 +1.30 [1.09x, 1.12x] +10.3% worse" in said
    assert "\x1b[31mworse" in contrast_text([pair], colour=True)


def test_times_that_fall_by_similar_factors_are_significant(tmp_path):
    """In seconds, the interval would be -38 +- 81, because one seed has a much higher load."""
    waits = {"vtc": (4.0, 10.0, 110.0), "lpm": (1.0, 2.0, 26.0)}
    found = contrast(*sides(tmp_path, **{name: {P99: w} for name, w in waits.items()}), [P99])
    (row,) = found.metrics
    assert row.difference.decisive is None
    assert row.decision is Decision.BETTER
    assert row.more_seeds is None
    assert row.ratio == pytest.approx((1 / 4 * 1 / 5 * 26 / 110) ** (1 / 3))


def test_a_replay_without_random_draws_is_exact(tmp_path):
    found = contrast(*sides(tmp_path, vtc={P99: (8.0,) * 3}, lpm={P99: (9.0,) * 3}), [P99])
    said = " ".join(contrast_text([found]).split())
    assert (
        "all seeds gave the same results: differences are exact, but hold for this load only"
        in said
    )
    assert "8.00 9.00 +1.00 exact +12.5% worse" in said


@pytest.mark.parametrize(
    ("facts", "decision"),
    [
        ({}, Decision.WORSE),
        ({"synthetic": "times and lengths are drawn from measured windows"}, None),
        ({"timing_error_pct": 5.0}, None),
        ({"routers": 2}, None),
        ({"local": "random"}, None),
        ({"simulated": False}, None),
    ],
)
def test_one_seed_of_a_replay_is_exact_unless_parts_are_random(tmp_path, facts, decision):
    same = {key: (value,) for key, value in {"trace": "t.csv", **facts}.items()}
    vtc, lpm = ({P99: (value,), JAIN: (0.9,), **same} for value in (8.0, 9.0))
    found = contrast(*sides(tmp_path, seeds=(0,), vtc=vtc, lpm=lpm), [P99, JAIN])
    assert rows(found)[P99].decision is (decision or Decision.INCONCLUSIVE)
    said = " ".join(contrast_text([found]).split())
    if decision:
        assert rows(found)[P99].difference.runs == 1
        assert rows(found)[JAIN].decision is Decision.SAME
        assert said.startswith("lpm's well-behaved P99 is 12.5% higher than vtc's. ")
        assert "in a replay, all seeds give the same results: differences are exact, but" in said
        assert "8.00 9.00 +1.00 exact +12.5% worse" in said
    else:
        assert said.startswith("One seed cannot show a difference between lpm and vtc")


def test_a_replay_says_which_metrics_cannot_be_compared(tmp_path):
    values = {"trace": ("t.csv",), P99: (8.0,), DONE: (None,)}
    found = contrast(*sides(tmp_path, seeds=(0,), vtc=values, lpm=values), [P99, DONE])
    line = "lpm and vtc are the same in 1 of 2 metrics; 1 cannot be compared.\n"
    assert contrast_text([found]).startswith(line)


def test_rounding_does_not_hide_an_exact_difference(tmp_path):
    values = {"vtc": {P99: (156.976,) * 3}, "lpm": {P99: (61.359,) * 3}}
    found = contrast(*sides(tmp_path, **values), [P99])
    assert rows(found)[P99].difference.deviation > 0
    assert "157 61.4 -95.6 exact" in " ".join(contrast_text([found]).split())


@pytest.mark.parametrize(("after", "decision"), [(10.004, "same"), (10.006, "worse")])
def test_a_difference_that_prints_as_zero_is_no_difference(tmp_path, after, decision):
    """0.04% counts as equal and 0.06% as worse, although neither varies."""
    found = contrast(*sides(tmp_path, vtc={P99: (10.0,) * 3}, lpm={P99: (after,) * 3}), [P99])
    assert rows(found)[P99].decision == decision


def test_bounds_are_written_as_bounds(tmp_path):
    vtc = {P99: (8.0, 9.0, 8.5), "censored": ([], [], [])}
    lpm = {P99: (900.0, 901.0, 902.5), "censored": ([P99], [P99], [P99])}
    found = contrast(*sides(tmp_path, vtc=vtc, lpm=lpm), [P99])
    said = " ".join(contrast_text([found]).split())
    assert "8.50 > 901 > +893 > +890 - worse" in said
    back = contrast(found.other, found.baseline, [P99])
    assert " - better" in " ".join(contrast_text([back]).split())


def test_one_seed_cannot_decide(tmp_path):
    found = contrast(*sides(tmp_path, seeds=(0,), vtc={P99: (8.0,)}, lpm={P99: (80.0,)}), [P99])
    assert rows(found)[P99].decision is Decision.INCONCLUSIVE
    assert "80.0 +72.0 - +900.0% inconclusive -" in " ".join(contrast_text([found]).split())


def test_seeds_of_one_side_only_are_listed_as_left_out(tmp_path):
    (vtc,) = sides(tmp_path / "a", seeds=(0, 1, 5), vtc={P99: (1.0, 2.0, 3.0)})
    (lpm,) = sides(tmp_path / "b", seeds=(0, 1, 2), lpm={P99: (2.0, 3.5, 3.0)})
    found = contrast(vtc, lpm, [P99])
    assert (found.seeds, found.left_out) == ((0, 1), (2, 5))
    assert "left out, because only one side has them: seeds 2, 5" in contrast_text([found])
    (other,) = sides(tmp_path / "c", seeds=(7, 8), lpm={P99: (2.0, 3.5)})
    with pytest.raises(
        UsageError, match="vtc has seeds 0, 1, 5 and lpm has seeds 7 to 8: a comparison needs seeds"
    ):
        contrast(vtc, other, [P99])


def test_differing_configurations_are_named(tmp_path):
    one = stored(tmp_path / "a", {"scheduler": "vtc"})
    two = stored(tmp_path / "b", {"scheduler": "vtc", "dp": 2})
    first, second = (
        sides_of([ComparedRun(run, experiment_of(run), run.summary)])[0] for run in (one, two)
    )
    found = contrast(first, second, [P99])
    assert "dp = 2 (not 1)" in found.unlike
    assert "different load or cluster: dp = 2 (not 1)" in contrast_text([found])


def test_the_same_run_twice_is_refused(tmp_path):
    runs = [stored(tmp_path / name, {"scheduler": "vtc"}) for name in "ab"]
    compared = [ComparedRun(run, experiment_of(run), run.summary) for run in runs]
    with pytest.raises(DataError, match="have the same experiment and seed; keep one of them"):
        sides_of(compared)


def test_metrics_have_a_worse_side_and_include_clients_on_request(tmp_path):
    run = store(tmp_path / "a")
    (side,) = sides_of(runs_below(run))
    known = known_metrics([side])
    assert {"jain_index", P99, "refused"} <= set(known)
    assert not {"duration", "seed", "scheduler"} & set(known)
    name = side.first.summary["clients"][0]["client"]
    check_metrics(["jain_index", f"clients.{name}.p99_s"], [side])
    with pytest.raises(UsageError, match=r"unknown metric 'jain_indx'.*Did you mean 'jain_index'"):
        check_metrics(["jain_indx"], [side])
    with pytest.raises(UsageError, match=r"duration.*neither higher nor lower is better"):
        check_metrics(["duration"], [side])
    found = contrast(side, side, [f"clients.{name}.p99_s"])
    assert f"{name}: P99, s" in contrast_text([found])


def test_more_seeds_are_those_that_the_deciding_ratios_need(tmp_path):
    """Loads differ by a factor of 100, so differences in seconds would need many more seeds."""
    waits = {"vtc": (1.0, 10.0, 100.0), "lpm": (0.8, 9.9, 60.0)}
    found = contrast(*sides(tmp_path, **{name: {P99: w} for name, w in waits.items()}), [P99])
    (row,) = found.metrics
    assert row.decision is Decision.INCONCLUSIVE
    # logarithms of 0.8, 0.99 and 0.6: mean -0.248, deviation 0.254
    assert row.more_seeds == seeds_needed(0.2480, 0.2539) - 3
    assert row.more_seeds < row.difference.more_seeds()


@pytest.mark.parametrize(("after", "exact"), [((9.0, 9.0, 9.0), True), ((8.0, 20.0, 9.0), False)])
def test_differences_are_exact_only_if_neither_side_depends_on_the_seed(tmp_path, after, exact):
    found = contrast(*sides(tmp_path, vtc={P99: (8.0,) * 3}, lpm={P99: after}), [P99])
    assert ("all seeds gave the same results" in contrast_text([found])) is exact
