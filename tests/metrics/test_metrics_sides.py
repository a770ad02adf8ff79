"""Test metrics of separate prefill and decode workers by hand: waits, backlogs and work."""

from dataclasses import replace

import numpy as np
import pytest

from fairbench.metrics.summary import summarize
from fairbench.metrics.tables import Tables
from fairbench.metrics.waiting import Backlog, waits
from tests.metrics.metrics_helpers import NAN, facts, log, programs, requests

# SGLang reserves memory before the prompt, vLLM may do so 2 s after it. Worker 1 decodes.
TIMES = {"arrival_s": 0.0, "admitted_s": 3.0, "first_token_s": 9.0, "finish_s": 20.0}
CALLS = requests({"request_id": 0, **TIMES}, {"request_id": 1, "client": 1, **TIMES})
CALLS = replace(
    CALLS,
    decode_worker=np.array([1, 1]),
    reserved_s=np.array([1.0, 7.0]),
    computed_s=np.array([5.0, 5.0]),
    sent_s=np.array([5.0, 7.0]),
    received_s=np.array([6.0, 8.5]),
)
APART = facts(workers=2, prefill_workers=1)


def rows(table):
    return [*zip(*(column.tolist() for column in table), strict=True)]


def test_a_computed_prompt_waits_for_memory_that_was_not_reserved_before():
    assert rows(waits(CALLS, 100.0)) == [(0, 0, 0.0, 3.0), (0, 1, 0.0, 3.0), (1, 1, 5.0, 7.0)]


def test_a_prompt_that_is_never_read_waits_to_the_end():
    never = replace(CALLS, reserved_s=np.array([1.0, NAN]))
    assert rows(waits(never, 100.0))[-1] == (1, 1, 5.0, 100.0)


def test_a_retracted_request_waits_at_its_decode_worker():
    back = replace(CALLS, retracted_s=np.array([10.0, NAN]), readmitted_s=np.array([12.0, NAN]))
    assert (1, 0, 10.0, 12.0) in rows(waits(back, 100.0))


def test_a_client_is_backlogged_where_it_waits_at_every_prefill_worker():
    assert rows(Backlog.of_requests(CALLS, APART)) == [(0, 0.0, 3.0), (1, 0.0, 3.0)]
    assert rows(Backlog.of_requests(CALLS, replace(APART, prefill_workers=None, workers=3))) == []


def test_busy_time_is_split_by_side_and_transfers_are_timed():
    service = log({"worker": 0}, {"worker": 1}, {"worker": 1, "client": 1})
    service = replace(service, gpu_s=np.array([4.0, 20.0, 30.0]))
    tables = Tables(["c0", "c1"], CALLS, programs(), service)
    expected = {
        "prefill_busy_ratio": pytest.approx(0.04),
        "decode_busy_ratio": pytest.approx(0.5),
        "prefill_gpu_s": 4.0,
        "decode_gpu_s": 50.0,
        "mean_transfer_ms": pytest.approx(1_250),
    }
    summary = summarize(tables, APART)
    assert {key: summary[key] for key in expected} == expected
    assert not expected.keys() & summarize(tables, facts()).keys()
    none = replace(CALLS, sent_s=np.array([NAN, NAN]))
    empty = summarize(replace(tables, requests=none), APART)
    assert empty["mean_transfer_ms"] is None
    assert empty["notes"]["mean_transfer_ms"] == "no KV cache was transferred"
