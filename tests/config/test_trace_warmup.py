"""Test that the warm-up of a replayed log ends before its first flood."""

import pytest

from fairbench.config.resolve import experiment
from fairbench_logs.planning.question import Clusters, PlanQuestion
from tests.shared_data import SHARED, needs

FIELD = SHARED / "data/field2"


def log(path, floods, *, span_s=600, gap_s=2.0, clients=4):
    """Write a log of clients that send every ``gap_s``. ``floods`` are (start_s, end_s, count)."""
    rows = [
        (place * gap_s / clients + number * gap_s, f"c{place}")
        for place in range(clients)
        for number in range(int(span_s / gap_s))
    ]
    for start_s, end_s, count in floods:
        rows += [(start_s + n * (end_s - start_s) / count, "flood") for n in range(count)]
    lines = [f"{at:.3f},{who},500,50" for at, who in sorted(rows)]
    path.write_text("\n".join(["timestamp,client,input_tokens,output_tokens", *lines]))
    return str(path)


@pytest.mark.parametrize(
    ("floods", "flags", "warmup_s"),
    [
        ([], {}, 60.0),
        ([(300, 330, 900)], {}, 60.0),
        ([(20, 50, 900)], {}, 20.0),
        ([(45, 120, 900)], {}, 45.0),  # the flood begins before the usual end of the warm-up
        ([(0, 40, 900)], {}, 0.0),
        # the smallest flood is first
        ([(300, 330, 2_000), (30, 40, 300), (500, 520, 1_500)], {}, 30.0),
        ([(20, 50, 900)], {"time_scale": 2.0}, 10.0),
        ([(10, 590, 9_000)], {}, 10.0),  # the flood lasts nearly the whole time
    ],
)
def test_the_warm_up_ends_before_the_first_flood(tmp_path, floods, flags, warmup_s):
    spec = experiment({"trace": log(tmp_path / "log.csv", floods), **flags}, {})
    assert spec.warmup_s == pytest.approx(warmup_s, abs=0.5)


def test_a_flood_of_a_short_log_is_no_warm_up(tmp_path):
    file = log(tmp_path / "log.csv", [(2, 6, 200)], span_s=50, gap_s=1.0)
    assert experiment({"trace": file}, {}).warmup_s == 2.0


def test_a_plan_measures_the_flood_too(tmp_path):
    file = log(tmp_path / "log.csv", [(20, 50, 900)])
    question = PlanQuestion(["ttft_p99<2s"], ["fcfs"], 1, 4, {"trace": file}, {}, loads=[1.0, 2.0])
    clusters = Clusters(question)
    assert [clusters.spec(one, 2).warmup_s for one in question.choices] == [20.0, 10.0]


@needs(FIELD / "flood_early.csv")
def test_the_field_logs_leave_the_same_requests_of_the_flood():
    for name, warmup_s in (("flood_early", 20.0), ("flood_late", 60.0)):
        file = str(FIELD / f"{name}.csv")
        assert experiment({"trace": file}, {}).warmup_s == warmup_s
