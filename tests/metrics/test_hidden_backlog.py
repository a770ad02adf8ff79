"""Test the time per output token relative to a lone request: by hand, and in simulated runs."""

import math

import numpy as np
import pytest

from fairbench.config.resolve import resolve
from fairbench.metrics.contention import hides_backlog, lone_tpot_ratio
from fairbench.metrics.records import (
    FINISHED,
    UNFINISHED,
    Client,
    Facts,
    LoneStep,
    Programs,
    Requests,
    Service,
    Window,
)
from fairbench.metrics.tables import Tables
from fairbench.sim.run import simulate

LONE = LoneStep(0.01, 0.0001)
NAMES = ("arrival_s", "first_token_s", "finish_s", "input_tokens", "output_tokens", "status")
# With 95 + 10 / 2 tokens of context, a lone step takes 0.02 s.
REQUESTS = [
    (1.0, 2.0, 2.36, 95, 10, FINISHED),  # 0.04 s per token is twice that
    (1.0, 2.0, 2.54, 95, 10, FINISHED),  # three times
    (1.0, 2.0, 3.80, 95, 10, FINISHED),  # ten times
    (1.0, 2.0, 2.00, 95, 1, FINISHED),  # no gap
    (1.0, 2.0, np.nan, 95, 10, UNFINISHED),
    (0.5, 2.0, 9.00, 95, 10, FINISHED),  # before the window
]


def ratio(rows, lone=LONE):
    columns = {name: [0] * len(rows) for name in Requests.__dataclass_fields__}
    columns |= dict(zip(NAMES, map(list, zip(*rows, strict=True)), strict=True))
    others = [
        table.from_columns({name: [] for name in table.__dataclass_fields__})
        for table in (Programs, Service)
    ]
    tables = Tables(["a"], Requests.from_columns(columns), *others)
    facts = Facts((Client("a", False),), Window(1.0, 5.0), 9.0, 1, 1_000, lone=lone)
    return lone_tpot_ratio(tables.requests, facts)


def test_the_backlog_equals_a_hand_computation():
    assert ratio(REQUESTS) == pytest.approx(3.0)
    assert math.isnan(ratio(REQUESTS, None))
    assert math.isnan(ratio(REQUESTS[3:]))


@pytest.mark.parametrize(("limit", "hidden"), [(2048, True), (32, False)])
def test_without_a_limit_too_many_trees_hide_in_the_batch(limit, hidden):
    flags = {
        "workload": "tot", "scenario": "none", "scheduler": "vtc", "request_rate": 0.5,
        "duration_s": 40.0, "warmup_s": 20.0, "gpu": "a100-80gb/llama-3.1-8b/tp1/sglang-0.5.10",
    }  # fmt: skip
    settings = {"engine.max_running_requests": limit}
    summary = simulate(resolve(flags, settings)).summary
    assert (summary["lone_tpot_ratio"] > 4) == hidden
    assert hides_backlog(summary) == hidden


def test_a_lone_request_has_a_relative_time_of_one():
    flags = {"workload": "chat", "scenario": "none", "scheduler": "fcfs", "num_programs": 1}
    spec = resolve(flags | {"clients": 1})
    assert simulate(spec).summary["lone_tpot_ratio"] == pytest.approx(1.0, rel=0.02)
