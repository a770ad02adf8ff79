"""Test that the first line of each comparison, sweep, plan and check is the answer."""

import pytest

from fairbench.report.comparison_table import sweep_title
from fairbench.report.pair_table import MOST_ROWS, answers, main_metrics
from fairbench.results.comparison import compare, contrast
from fairbench_gate.clauses import Verdict
from fairbench_gate.outcome import ClauseRow, Outcome
from fairbench_logs.planning.table import needed_line
from tests.results.comparison_helpers import stored
from tests.results.test_results_contrast import sides

GAP, P95, RATE, JAIN = "max_service_gap", "victim_p95_s", "service_rate_tok_s", "jain_index"
SHARE, HIT = "min_share_60s", "cache_hit_rate"


def answer(folder, fcfs, vtc, *, seeds=(0, 1, 2)):
    pair = contrast(*sides(folder, seeds=seeds, fcfs=fcfs, vtc=vtc), list(fcfs))
    (line,) = answers([pair])
    return line


SAME = {RATE: (10.0, 11.0, 12.0), HIT: (0.5, 0.6, 0.7)}
OPEN = {P95: (10.0, 20.0, 30.0)}, {P95: (12.0, 19.0, 31.0)}


@pytest.mark.parametrize(
    ("fcfs", "vtc", "said"),
    [
        (
            {GAP: (9000.0, 9500.0, 10000.0)},
            {GAP: (5500.0, 6000.0, 6500.0)},
            "vtc's largest service gap is 3,500 tokens smaller than fcfs's.",
        ),
        (
            {SHARE: (0.1, 0.2, 0.3)},
            {SHARE: (0.5, 0.6, 0.7)},
            "vtc's minimum fair share in the worst 60 s is 40.0 points higher than fcfs's.",
        ),
        (
            {P95: (10.0, 20.0, 30.0)},
            {P95: (5.0, 10.0, 15.0)},
            "vtc's well-behaved P95 is 50.0% lower than fcfs's.",
        ),
        (
            {"time_to_90pct_s": (10.0, 20.0, 30.0)},
            {"time_to_90pct_s": (30.0, 60.0, 90.0)},
            "vtc's time to 90% completion is 3.00 times as high as fcfs's.",
        ),
    ],
)
def test_a_single_difference_is_said_with_its_number(tmp_path, fcfs, vtc, said):
    line = answer(tmp_path, fcfs | SAME | OPEN[0], SAME | OPEN[1] | vtc)
    open_metrics = "" if P95 in vtc else " 3 seeds are too few to tell for 1 other metric."
    assert line == said + open_metrics


def test_several_differences_are_better_or_worse_or_neither(tmp_path):
    fcfs = {GAP: (9.0, 9.0, 9.0), RATE: (20.0, 30.0, 40.0), JAIN: (0.5, 0.5, 0.5)} | OPEN[0]
    vtc = {GAP: (8.0, 8.0, 8.0), RATE: (10.0, 15.0, 20.0), JAIN: (0.7, 0.7, 0.7)} | OPEN[1]
    assert answer(tmp_path, fcfs, vtc) == (
        "Under vtc instead of fcfs, 1 of 4 metrics is better: largest service gap 8 instead of 9 "
        "tokens; 1 of 4 metrics is worse: service 15.0 instead of 30.0 tok/s. 3 seeds are too few "
        "to tell for 1 other metric."
    )
    worse = answer(tmp_path / "2", fcfs | {HIT: (0.5, 0.5, 0.5)}, vtc | {HIT: (0.4, 0.4, 0.4)})
    assert worse.startswith("Under vtc instead of fcfs, 2 of 5 metrics are worse: service 15.0 ")


def test_metrics_that_are_neither_better_nor_worse_are_named_alone(tmp_path):
    first = {JAIN: (0.5, 0.5, 0.5), "actual_service_tok_s": (1.0, 1.0, 1.0)}
    second = {JAIN: (0.7, 0.7, 0.7), "actual_service_tok_s": (2.0, 2.0, 2.0)}
    assert answer(tmp_path, first, second) == (
        "Under vtc instead of fcfs, Jain index 0.700 instead of 0.500, computed service 2.00 "
        "instead of 1.00 tok/s."
    )


def test_many_differences_are_counted_and_the_first_in_each_unit_are_named(tmp_path):
    better = ("victim_p50_s", P95, "min_entitlement_ratio", SHARE, GAP, RATE)
    fcfs = dict.fromkeys(better, (8.0, 8.0, 8.0))
    vtc = dict.fromkeys(better, (4.0, 4.0, 4.0))
    assert answer(tmp_path, fcfs, vtc) == (
        "Under vtc instead of fcfs, 3 of 6 metrics are better: well-behaved P50 4.00 instead of "
        "8.00 s, largest service gap 4 instead of 8 tokens; 3 of 6 metrics are worse: minimum "
        "fair share of own total 400.0% instead of 800.0%, service 4.00 instead of 8.00 tok/s."
    )


def test_without_a_difference_the_answer_says_why(tmp_path):
    same = answer(tmp_path / "1", SAME, SAME)
    assert same == "vtc and fcfs are the same in 2 metrics."
    unclear = answer(tmp_path / "2", *OPEN)
    assert unclear == "3 seeds are too few to tell whether vtc differs from fcfs in 1 metric."
    partly = answer(tmp_path / "4", SAME | OPEN[0], SAME | OPEN[1])
    assert partly == "3 seeds are too few to tell whether vtc differs from fcfs in 1 of 3 metrics."
    single = answer(tmp_path / "3", {P95: (9.0,)}, {P95: (1.0,)}, seeds=(0,))
    assert single.startswith("One seed cannot show a difference between vtc and fcfs")


def test_the_main_metrics_are_few_and_different(tmp_path):
    some = {P95: (1.0, 1.0, 1.0), "goodput_ratio": (1.0, 1.0, 1.0), SHARE: (1.0, 1.0, 1.0)}
    found = main_metrics(sides(tmp_path, fcfs=some, vtc=some))
    assert len(found) == MOST_ROWS
    assert found[0] == "goodput_ratio"
    assert len([key for key in found if "jain" in key]) <= 1
    assert len([key for key in found if "entitlement" in key]) == 1


def cells(folder, seeds=(0,), **p99):
    runs = [
        stored(
            folder,
            {"scheduler": name, "seed": seed},
            victim_n=300,
            victim_p99_s=value + seed,
            service_rate_tok_s=1000.0,
        )
        for name, value in p99.items()
        for seed in seeds
    ]
    return compare(runs, {})


def test_the_title_of_a_sweep_names_the_lowest_latency(tmp_path):
    assert sweep_title(cells(tmp_path / "1", vtc=8.0, lpm=9.0)) == (
        "vtc has the lowest P99 of the well-behaved clients: 8.00 s at 1,000 tok/s (one seed, so "
        "no difference is significant)"
    )
    assert sweep_title(cells(tmp_path / "2", (0, 1, 2), vtc=8.0, lpm=9.0)) == (
        "vtc has the lowest P99 of the well-behaved clients: 9.00 s at 1,000 tok/s"
    )
    assert sweep_title(cells(tmp_path / "3", (0, 1, 2), vtc=8.0, lpm=8.0)) == (
        "No scheduler has a significantly lower P99 of the well-behaved clients than all others "
        "(3 seeds)"
    )
    assert sweep_title(cells(tmp_path / "4", vtc=8.0)) == (
        "vtc has a P99 of the well-behaved clients of 8.00 s in 1 configuration"
    )


def choice(scheduler, replicas, *, gpu="a100", load=1.0):
    return {
        "scheduler": scheduler,
        "replicas": replicas,
        "gpu": gpu,
        "timing_profile": f"{gpu}/m",
        "load": load,
    }


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ([choice("fcfs", 2), choice("vtc", 1)], "fcfs needs 2 replicas and vtc 1."),
        ([choice("vtc", 1)], "vtc needs 1 replica."),
        ([choice("vtc", None)], "vtc needs more than 8 replicas."),
        (
            [choice("vtc", 3, gpu="l4"), choice("vtc", 1)],
            "vtc on l4 needs 3 replicas and vtc on a100 1.",
        ),
        (
            [choice("vtc", 3, load=2.0), choice("vtc", 1, load=0.5)],
            "vtc at 2 times the load needs 3 replicas and vtc at 0.5 times the load 1.",
        ),
    ],
)
def test_a_plan_begins_with_the_replicas_that_it_needs(choices, said):
    target = {"metric": "victim_p95_s", "limit": 2.0, "slo": "victim_p95_s<2"}
    plan = {"choices": choices, "targets": [target], "high": 8}
    start = "To keep the mean TTFT P95 of well-behaved clients below 2 s, "
    assert needed_line(plan) == start + said
    plan["targets"] = [{"metric": "min_share_60s", "slo": "min_share_60s>80%"}]
    assert needed_line(plan) == "To keep min_share_60s>80%, " + said


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ({}, "Passed: 0 checks at 1 point"),
        ({"a": Verdict.PASS, "b": Verdict.PASS}, "Passed: 2 checks at 1 point"),
        ({"a": Verdict.PASS, "b": Verdict.FAIL}, "Failed at 1 point: b"),
        (
            {"a": Verdict.INCONCLUSIVE, "b": Verdict.FAIL},
            "Failed at 1 point: b; Not decided at 1 point: a",
        ),
        ({"a": Verdict.ERROR}, "Not judged at 1 point: a"),
        (dict.fromkeys("abcdef", Verdict.FAIL), "Failed at 1 point: a, b, c, d and 2 more"),
    ],
)
def test_a_check_begins_with_what_failed(verdicts, said):
    rows = tuple(ClauseRow("chat", clause, verdict) for clause, verdict in verdicts.items())
    assert Outcome("simulated", 1, rows, {}).answer() == said
