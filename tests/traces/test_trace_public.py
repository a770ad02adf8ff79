"""Test that every public trace beside the checkout loads, and a cut runs under each scheduler."""

import numpy as np
import pytest

import fairbench
from fairbench.config.resolve import experiment
from fairbench.errors import UsageError
from fairbench.schedulers.registry import PAIRS
from fairbench.workloads.traces.read import TraceParams, read_trace
from tests.shared_data import SHARED, needs

# file, format, requests, clients, and the seconds that are played, from the beginning
TRACES = (
    ("agent_sessions.jsonl.gz", "agent", 1262, 4, 60.0),
    ("azure_llm_2023_code.csv.gz", "azure", 8819, 1, 30.0),
    ("mooncake_synthetic_trace.jsonl.gz", "mooncake", 3993, 1, 15.0),
    ("servegen_deepseek-r1.jsonl.gz", "servegen", 1_383_669, 73, 10.0),
    ("servegen_m-small_day9.jsonl.gz", "servegen", 48_816_120, 26, 1.0),
    ("vtc_arena_trace.jsonl.gz", "arena", 1500, 27, 30.0),
    ("vtc_measured_runs.jsonl.gz", "vtc", 1889, 2, 30.0),
    ("serving_measured_runs.jsonl.gz", "serving", 200, 1, 30.0),
)
ONE_OF_SEVERAL = ("vtc", "serving")


@needs(SHARED / "data" / "agent_sessions.jsonl.gz")
def test_sessions_of_many_months_are_refused_as_a_whole():
    with pytest.raises(
        UsageError, match=r"lasts \d+ days at time_scale = 1, and at most 100 days are"
    ):
        experiment({"trace": str(SHARED / "data" / "agent_sessions.jsonl.gz")}, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form", "requests", "clients", "duration_s"),
    [pytest.param(*one, marks=needs(SHARED / "data" / one[0]), id=one[0]) for one in TRACES],
)
def test_a_public_trace_runs(name, form, requests, clients, duration_s):
    path = str(SHARED / "data" / name)
    line = {"trace_line": 1} if form in ONE_OF_SEVERAL else {}
    read = read_trace(TraceParams(path, line=line.get("trace_line", 0)))
    counts = [
        read.trace.count_programs(client, np.inf) for client in range(len(read.trace.clients))
    ]
    assert (read.format, len(counts)) == (form, clients)
    if not read.trace.pauses:
        assert sum(counts) == requests
    summaries = {
        scheduler: fairbench.run(
            trace=path, scheduler=scheduler, dp=2, duration=duration_s, **line
        ).summary
        for scheduler in PAIRS
    }
    for summary in summaries.values():
        assert summary["completed"] > 0
        assert summary["failed"] == 0
        assert ("synthetic" in summary) is read.trace.drawn
    assert len({summary["num_programs"] for summary in summaries.values()}) == 1
