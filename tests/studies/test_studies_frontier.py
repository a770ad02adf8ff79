"""Test the frontier study: frozen settings, the list of runs, and the conclusions."""

import csv
from dataclasses import replace
from math import exp, inf, isnan, log, nan
from pathlib import Path

import numpy as np
import pytest

from fairbench.config.resolve import resolve
from fairbench.errors import UsageError
from fairbench.metrics.censored_latency import Sample
from fairbench.results.store import read_run, save_run
from fairbench.schedulers.registry import split_pair
from fairbench.sim.run import simulate
from fairbench_studies.frontier.compare import Mark, Relation, compare, gain, relation
from fairbench_studies.frontier.draw import draw
from fairbench_studies.frontier.frozen import (
    CAPPED,
    PUBLISHED,
    TUNED,
    Cell,
    Configuration,
    digest,
    frozen,
)
from fairbench_studies.frontier.headline import headline
from fairbench_studies.frontier.measures import (
    FAIRNESS,
    Measured,
    Outcome,
    bounds,
    limit_curve,
    measured,
)
from fairbench_studies.frontier.paired_tests import estimate, holm
from fairbench_studies.frontier.runs import Plan
from fairbench_studies.frontier.table import against, markdown, rows, summary_lines, write

PRESET = "dlpm-paper"
FROZEN = {
    None: "61d065ab6ac023482560d0c7b9adf9a9faffd39cc36eabd7417bd722b831ae95",
    PRESET: "b57d1301f6dd1da42991e38963b2549db9839c9173f104894691b19cfdd26bec",
}
RESULTS = Path(__file__).resolve().parents[2] / "results"
OURS = Configuration("fair-finish", PUBLISHED)
D2LPM = Configuration("d2lpm", PUBLISHED)
PREBLE = Configuration("preble", PUBLISHED)
USUAL = Measured(100.0, 200.0, 40.0, 0.9, 0.8, 1000.0, 100.0, 500.0)


def outcome(seeds=(6, 7, 8), latencies=(40.0,) * 200, bounds=(), **changed):
    """Return runs that differ from the usual one in some fields, by a value or one per seed."""
    runs = {
        seed: USUAL._replace(
            **{k: v[number] if isinstance(v, tuple) else v for k, v in changed.items()}
        )
        for number, seed in enumerate(seeds)
    }
    known_s = np.array(latencies) * (changed.get("p95_s", 40.0) / 40.0)
    return Outcome(runs, [{"a": Sample(known_s, np.array([]), 0)}] * len(seeds), frozenset(bounds))


def cell(workload="tot", scenario="s1", part="test"):
    return Cell(part=part, workload=workload, scenario=scenario, seeds=(6, 7, 8))


@pytest.mark.parametrize("preset", FROZEN)
class TestFrozen:
    def test_nothing_was_changed_since_the_first_test_run(self, preset):
        assert digest(preset) == FROZEN[preset]

    def test_every_pair_occurs_in_every_form_and_the_cap_is_the_same_for_all(self, preset):
        made = frozen(preset)
        assert len(made.configurations) == 3 * len(made.pairs) == 21
        capped = [made.settings(Configuration(pair, CAPPED)) for pair in made.pairs]
        assert all(one == capped[0] for one in capped)
        assert capped[0]["engine.load_cap"] == "auto"
        assert all(made.settings(Configuration(pair, PUBLISHED)) == {} for pair in made.pairs)
        assert all(split_pair(pair) for pair in made.pairs)

    def test_test_cells_have_seeds_that_nothing_was_tuned_on(self, preset):
        parts = {part: set() for part in ("development", "test")}
        for one in frozen(preset).cells:
            parts[one.part].update(one.seeds)
        assert parts["development"] <= {0, 1, 2, 3, 4}
        assert min(parts["test"]) >= 6

    def test_the_tuned_settings_follow_the_rule_with_equal_trials(self, preset):
        name = f"frontier-tuning-{preset}.csv" if preset else "frontier-tuning.csv"
        with (RESULTS / name).open(encoding="utf-8") as file:
            trials = list(csv.DictReader(file))
        made = frozen(preset)
        for pair in made.pairs:
            own = [one for one in trials if one["pair"] == pair]
            assert len(own) == 6
            soonest = min(float(one["to_90_s"]) for one in own)
            near = [one for one in own if float(one["to_90_s"]) * (1 - made.margin) <= soonest]
            best = min(near, key=lambda one: float(one["p95_s"]))
            assert [one for one in own if one["chosen"] == "1"] == [best]
            tuned = made.settings(Configuration(pair, TUNED))
            assert tuned["engine.max_running_requests"] == int(best["max_running_requests"])
            quanta = {v for k, v in tuned.items() if k in ("dlpm.quantum", "dlpm-hold.quantum")}
            assert quanta == ({int(best["quantum"])} if best["quantum"] != "0" else set())


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"--preset vtc-paper: .* dlpm-paper only"):
        frozen("vtc-paper")


TUNED_ON = Cell(part="development", workload="chat", scenario="s1", seeds=(0, 1), full=1)
JUDGED = Cell(part="test", workload="judge", scenario="s1", seeds=(6, 7, 8), full=2, quick=1)
TINY = frozen().model_copy(update={"pairs": ["vtc", "fair-finish"], "cells": [TUNED_ON, JUDGED]})


class TestPlan:
    @pytest.mark.parametrize(
        ("form", "seeds"),
        [
            ({}, {"chat": (0,), "judge": (6, 7)}),
            ({"quick": True}, {"judge": (6,)}),
            ({"seeds": 3}, {"chat": (0, 1), "judge": (6, 7, 8)}),
            ({"quick": True, "seeds": 2}, {"judge": (6, 7)}),
        ],
    )
    def test_the_seeds_that_run(self, form, seeds):
        plan = Plan(TINY, **form)
        assert {one.workload: found for one, found in plan.seeds.items()} == seeds

    def test_test_cells_run_first_and_seed_after_seed(self, tmp_path):
        plan = Plan(TINY)
        left = plan.left(tmp_path / "frontier")
        assert left.points == len(left.jobs) == 3 * 6
        order = [plan.identities[job.key][0] for job in left.jobs]
        turns = [(one.cell.part != "test", one.seed) for one in order]
        assert turns == sorted(turns)

    def test_seeds_that_some_configuration_lacks_do_not_count(self):
        plan = Plan(TINY)
        stored = dict.fromkeys(plan.identities, "run")
        lost = next(
            key
            for key, of in plan.identities.items()
            if (of[0].seed, of[0].cell.part) == (7, "test")
        )
        del stored[lost]
        assert len(plan.identities) == 18  # no two forms are equal in this test
        found = plan.finished(stored)
        assert {(one.cell.workload, one.seed) for one in found} == {("chat", 0), ("judge", 6)}
        assert len(found) == 12

    def test_a_capped_run_has_the_cap_instead_of_the_limit_of_the_workload(self):
        plan = Plan(TINY, quick=True)
        specs = {point.configuration: spec for point, spec in plan._points}
        capped = specs[Configuration("vtc", CAPPED)].settings
        assert (capped["engine.load_cap"], capped["engine.max_running_requests"]) == ("auto", 2048)
        published = specs[Configuration("vtc", PUBLISHED)].settings
        assert published["engine.max_running_requests"] == 64


def test_runs_at_a_preset_have_its_settings():
    settings = TINY.model_copy(update={"preset": PRESET, "cells": [JUDGED]})
    specs = [spec for _, spec in Plan(settings, quick=True)._points]
    assert {spec.settings["engine.max_total_tokens"] for spec in specs} == {20_000}
    assert {spec.num_programs for spec in specs} == {50}


class TestEstimate:
    def test_a_mean_over_cells_with_the_error_of_their_seeds(self):
        # The variances of the means are 0.02 / 2 = 0.01 and 0. That of the mean of both is 0.01 /
        # 4.
        found = estimate({"a": [0.1, 0.3], "b": [0.5, 0.5, 0.5]})
        assert found.gain == pytest.approx((0.2 + 0.5) / 2)
        assert (found.error, found.degrees) == (pytest.approx(0.05), 1)

    def test_differing_cells_do_not_increase_the_uncertainty(self):
        found = estimate({"a": [0.0, 0.0], "b": [9.0, 9.0]})
        assert (found.gain, found.error, found.degrees) == (4.5, 0.0, 2)
        assert found.p_above(0.0) == 0.0

    def test_one_cell_gives_the_usual_paired_t_test(self):
        # The differences 1, 2, 3 have mean 2, error 1/sqrt 3, t = 3.464 with 2 degrees, two-sided
        # 0.0742.
        found = estimate({"a": [1.0, 2.0, 3.0]})
        assert found.p_above(0.0) == pytest.approx(0.0742 / 2, abs=1e-4)
        assert found.p_below(0.0) == pytest.approx(1 - 0.0742 / 2, abs=1e-4)
        low, high = found.interval(0.05)
        assert (log(low), log(high)) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-3)

    def test_single_seeds_prove_nothing(self):
        found = estimate({"a": [5.0]})
        assert (found.ratio, found.interval(0.05)) == (pytest.approx(exp(5)), (0.0, inf))
        assert found.p_above(0.0) == found.p_below(0.0) == 1.0

    @pytest.mark.parametrize("gain", [inf, -inf, nan])
    def test_invalid_numbers_prove_nothing(self, gain):
        found = estimate({"a": [gain, 0.1], "b": [0.1, 0.2]})
        assert isnan(found.ratio)
        assert found.p_above(0.0) == found.p_below(0.0) == 1.0

    def test_holm_equals_hand_computed_values(self):
        assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
        assert holm([0.9, 0.8]) == [1.0, 1.0]


class TestRelation:
    @pytest.mark.parametrize(
        ("changed", "expected"),
        [
            ({}, Relation.EQUAL),
            ({"to_90_s": 101.0}, Relation.EQUAL),
            ({"to_90_s": 110.0}, Relation.DOMINATES),
            ({"served": 0.5}, Relation.DOMINATES),
            ({"p95_s": 60.0, "to_100_s": 190.0}, Relation.TRADES),
            ({"p95_s": 30.0}, Relation.DOMINATED),
            ({"service_tok_s": 9999.0}, Relation.EQUAL),  # a secondary measure
        ],
    )
    def test_fair_finish_against_a_rival(self, changed, expected):
        assert relation(outcome(), outcome(**changed), 0.02) is expected

    def test_gains_are_above_0_where_fair_finish_is_better(self):
        assert gain("to_90_s", 50.0, 100.0) == pytest.approx(log(2))
        assert gain("served", 1.0, 0.5) == pytest.approx(log(2))


class TestCompare:
    def test_marks_show_significance(self):
        here = {
            OURS: outcome(),
            D2LPM: outcome(
                to_90_s=(120.0, 121.0, 122.0),  # ours better
                to_100_s=(200.1, 199.9, 200.0),  # the same
                p95_s=20.0,  # ours worse
                served=(0.1, 0.9, 9.0),  # any value
            ),
        }
        (one,) = compare({cell(): here}, OURS, margin=0.02, level=0.05)
        marks = [one.marks[name] for name in ("to_90_s", "to_100_s", "p95_s", "served")]
        assert marks == [Mark.BETTER, Mark.NOT_WORSE, Mark.WORSE, Mark.OPEN]
        assert one.estimates["p95_s"].ratio == pytest.approx(0.5)
        assert one.count(Relation.TRADES) == 1

    def test_slightly_worse_values_get_both_marks(self):
        """The scheduler is 1% behind, which is within the margin of 2% but significant."""
        here = {OURS: outcome(), D2LPM: outcome(to_100_s=(198.0, 197.9, 198.1))}
        (one,) = compare({cell(): here}, OURS, margin=0.02, level=0.05)
        assert one.marks["to_100_s"] is Mark.A_LITTLE_WORSE

    def test_cells_that_differ_in_replicas_count_separately(self):
        twice = {OURS: outcome(), D2LPM: outcome(to_90_s=200.0)}
        same = {OURS: outcome(), D2LPM: outcome()}
        cells = {cell(): twice, cell().model_copy(update={"dp": 8}): same}
        (one,) = compare(cells, OURS, margin=0.02, level=0.05)
        assert one.estimates["to_90_s"].ratio == pytest.approx(2**0.5)

    def test_a_bound_never_decides_in_the_wrong_direction(self):
        def marks(mine=(), theirs=()):
            here = {
                OURS: outcome(bounds=mine),
                D2LPM: outcome(to_90_s=(120.0, 121.0, 122.0), to_100_s=150.0, bounds=theirs),
            }
            (one,) = compare({cell(): here}, OURS, margin=0.02, level=0.05)
            return one.marks["to_90_s"], one.marks["to_100_s"]

        assert marks() == (Mark.BETTER, Mark.WORSE)
        both = ("to_90_s", "to_100_s")
        assert marks(mine=both) == (Mark.OPEN, Mark.WORSE)
        assert marks(theirs=both) == (Mark.BETTER, Mark.OPEN)


class TestHeadline:
    def test_the_frontier_holds_if_it_holds_in_both_halves(self):
        here = {
            OURS: outcome(service_tok_s=990.0),
            D2LPM: outcome(p95_s=50.0),
            PREBLE: outcome(service_tok_s=(1100.0, 1101.0, 1102.0), p95_s=30.0),
        }
        found = {cell(): here, cell("chat"): here, cell(part="development"): here}
        first, second = headline(found, OURS, 0.02)
        assert (first.rival, first.throughput_holds, first.latency_holds) == (D2LPM, True, True)
        assert first.p99_s == pytest.approx((40.0, 50.0))
        assert first.latencies == 600
        assert (second.throughput_holds, second.latency_holds) == (False, False)

    def test_few_latencies_give_no_p99(self):
        here = dict.fromkeys((OURS, D2LPM, PREBLE), outcome(latencies=(40.0,) * 99))
        assert not any(one.latency_holds for one in headline({cell(): here}, OURS, 0.02))


def test_a_run_is_measured_by_its_worst_off_well_behaved_client():
    def client(name, service, due, misbehaving=False):
        return {
            "client": name, "misbehaving": misbehaving, "service_rate_tok_s": service,
            "demand_tok_s": due,
        }  # fmt: skip

    summary = {
        "time_to_90pct_s": 10.0, "time_to_100pct_s": None, "duration": 99.0, "victim_p95_s": 4.0,
        "service_rate_tok_s": 60.0, "output_rate_tok_s": 6.0, "actual_service_tok_s": 30.0,
        "clients": [client("a", 10, 100, True), client("b", 30, 40), client("c", 20, 20)],
        "simulated": True, "notes": {}, "censored": [],
    }  # fmt: skip
    found = measured(summary, 90.0)
    # some programs never finished, so the end of the run is a lower bound
    assert (found.to_90_s, found.to_100_s) == (10.0, 99.0)
    # the percentile falls among refused requests
    assert isnan(measured(summary | {"victim_p95_s": None}, 90.0).p95_s)
    assert bounds(summary) == {"to_100_s"}
    assert bounds(summary | {"censored": ["victim_p95_s"]}) == {"to_100_s", "p95_s"}
    assert found.served == 0.75
    # c's due is 20 of 90 tokens/s. a and b share the other 70, 35 each, and a got 10 of its 35.
    assert found.share == pytest.approx(10 / 35)


FOUND = {
    cell(): {OURS: outcome(), D2LPM: outcome(to_90_s=123.0), PREBLE: outcome(p95_s=80.0)},
    cell("mix"): {OURS: outcome(), D2LPM: outcome(), PREBLE: outcome()},
}


class TestTable:
    def test_the_table_fits_and_names_dominated_configurations(self):
        lines = list(summary_lines(FOUND, frozen()))
        assert max(map(len, lines)) <= 100
        compared = compare(FOUND, OURS, margin=0.02, level=0.05)
        (row,) = [line for line in against(compared, OURS) if line.startswith("| d2lpm")]
        assert "1/1/0/0" in row
        assert f"{1.23**0.5:.2f}" in row

    def test_pairs_with_the_same_cap_are_compared_with_each_other(self):
        """Both are equally good as published. Capped, the rival has twice the P95."""
        capped = {
            one._replace(form=CAPPED): outcome(p95_s=p95_s)
            for one, p95_s in ((OURS, 40.0), (D2LPM, 80.0))
        }
        found = {cell(): {OURS: outcome(), D2LPM: outcome(), PREBLE: outcome(), **capped}}
        lines = list(summary_lines(found, frozen()))
        start = lines.index("### The same, all capped")
        (row,) = [line for line in lines[start:] if line.startswith("| d2lpm, capped")]
        assert "2.00" in row
        assert "### The same, all tuned" not in lines

    def test_the_files_have_every_cell_and_seed(self, tmp_path):
        text, table = write(FOUND, frozen(), "simulated", tmp_path)
        assert text.read_text() == markdown(FOUND, frozen(), "simulated")
        assert "## mix s1 (test configuration)" in text.read_text()
        with table.open() as file:
            assert len(list(csv.DictReader(file))) == len(rows(FOUND)) == 2 * 3 * 3


def test_the_picture_shows_each_cell_twice(tmp_path):
    pytest.importorskip("seaborn")
    from fairbench_studies.frontier.draw import plot

    settings = frozen().model_copy(update={"pairs": ["d2lpm", "preble", "fair-finish"]})
    (picture,) = plot(FOUND, settings, "simulated", tmp_path, ["svg"])
    text = picture.read_text()
    assert "tot s1 (test)" in text
    assert "mix s1 (test)" in text
    assert text.count("min. fair share of best, %") == 1


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Return a stored run of two clients whose service costs differ, and its summary."""
    spec = resolve({"workload": "tot", "scenario": "s2", "num_programs": 2, "request_rate": 5.0})
    result = simulate(spec)
    folder, manifest = tmp_path_factory.mktemp("run"), {"schema_version": 1}
    return read_run(save_run(folder, spec, result.tables(), result.summary, manifest))


def test_the_curve_of_the_limit_falls_from_one_to_the_limit_at_fair_shares(stored):
    curve, summary = limit_curve(stored), stored.summary
    assert len(curve) == len(FAIRNESS)
    assert curve[0] == 1
    assert list(curve) == sorted(curve, reverse=True)
    fair = summary["limit_fair_service_tok_s"] / summary["limit_service_tok_s"]
    assert curve[-1] == pytest.approx(fair)


def test_an_old_run_has_no_curve_and_no_share_of_the_limit(stored):
    old = {key: one for key, one in stored.summary.items() if not key.startswith("limit_")}
    assert limit_curve(replace(stored, summary=old)) == ()
    assert isnan(measured(old, 1.0).limit)


@pytest.mark.parametrize(("worst", "expected"), [(None, 1.0), (0.42, 0.42), (0.0, 0.0)])
def test_the_worst_minute_is_a_measure(worst, expected, stored):
    assert measured(stored.summary | {"min_share_60s": worst}, 1.0).worst_minute == expected


def test_the_worst_minute_is_compared_and_the_limit_is_shown():
    here = {OURS: outcome(worst_minute=0.6, limit=0.9), D2LPM: outcome(worst_minute=0.5)}
    here[PREBLE] = outcome()
    compared, _ = compare({cell(): here}, OURS, margin=0.02, level=0.05)
    assert compared.estimates["worst_minute"].ratio == pytest.approx(1.2)
    text = markdown({cell(): here}, frozen(), "simulated")
    assert "| of limit |" in text
    assert " 90% |" in text


def test_the_picture_has_the_curve_only_where_it_is_known(stored):
    pytest.importorskip("seaborn", reason="figures need the plot extra")
    one = outcome(limit=0.9)
    for curve, panels in (((), 2), (limit_curve(stored), 3)):
        here = {OURS: replace(one, curve=curve), D2LPM: outcome(limit=0.8, share=0.7)}
        figure = draw({cell(): here}, frozen(), "simulated")
        assert len(figure.axes) == panels
        lines = [len(axes.lines) for axes in figure.axes]
        assert lines == [2, 2, 3][:panels]
