"""Test recorded traces: clients, times and contents, and malformed files."""

import gzip
import json
from math import inf

import pytest

from fairbench.config.resolve import resolve
from fairbench.errors import DataError, UsageError
from fairbench.sim.run import simulate
from fairbench.workloads.traffic import traffic_kind
from fairbench.workloads.traffic.arrivals import TrafficLoad

RECORDS = [
    {"t": 0.0, "client": 4, "prompt_len": 10, "output_len": 5},
    {"t": 1.5, "client": 2, "prompt_len": 20, "output_len": 6},
    {"t": 1.5, "client": 4, "prompt_len": 30, "output_len": 7},
    {"t": 3.0, "client": 4, "prompt_len": 40, "output_len": 8},
]


def lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def trace(tmp_path, monkeypatch):
    def trace(text=None, name="mine.jsonl"):
        (tmp_path / name).write_text(lines(RECORDS) if text is None else text)
        monkeypatch.setenv("FAIRBENCH_DATA", f"/nowhere:{tmp_path}")
        return traffic_kind("trace", {"file": name})

    return trace


def sent(kind, client, **load):
    given = TrafficLoad(client, 1.0, 1.0, None, inf)._replace(**load)
    arrivals = kind.usual(given).arrivals(None)
    return [(at_s, item.text_tokens, item.exchanges) for at_s, item in arrivals]


def test_clients_are_those_of_the_trace_in_the_order_of_their_ids(trace):
    kind = trace()
    assert sent(kind, 0) == [(1.5, 20, ((0, 6),))]
    assert [at_s for at_s, *_ in sent(kind, 1)] == [0.0, 1.5, 3.0]
    assert sent(kind, 2) == []


def test_the_rate_is_the_speed_and_counts_and_ends_hold(trace):
    kind = trace()
    assert [at_s for at_s, *_ in sent(kind, 1, programs_per_s=2.0)] == [0.0, 0.75, 1.5]
    assert [at_s for at_s, *_ in sent(kind, 1, num_programs=2)] == [0.0, 1.5]
    assert [at_s for at_s, *_ in sent(kind, 1, until_s=3.0)] == [0.0, 1.5]
    source = kind.usual(TrafficLoad(1, 1.0, 1.0, None, inf))
    assert source.timed
    assert (source.expected_programs(), source.last_arrival_s(None)) == (3, 3.0)


def test_a_trace_is_read_packed_or_by_path(tmp_path):
    path = tmp_path / "mine.jsonl.gz"
    path.write_bytes(gzip.compress(lines(RECORDS).encode()))
    assert len(sent(traffic_kind("trace", {"file": str(path)}), 1)) == 3


def test_a_file_that_is_not_compressed_despite_its_name_is_read(trace):
    with pytest.raises(DataError, match=r"vtc_arena_trace\.jsonl\.gz: cannot be read"):
        sent(trace(name="vtc_arena_trace.jsonl.gz"), 0)


def test_a_run_has_the_times_and_lengths_of_the_trace(trace, tmp_path):
    path = tmp_path / "vtc_arena_trace.jsonl.gz"
    trace()
    path.write_bytes(gzip.compress(lines(RECORDS).encode()))
    result = simulate(resolve({"workload": "vtc-arena", "scheduler": "vtc"}))
    columns = ("arrival_s", "input_tokens", "output_tokens")
    rows = zip(*(result.requests[name].tolist() for name in columns), strict=True)
    assert sorted(rows) == [(0.0, 10, 5), (1.5, 20, 6), (1.5, 30, 7), (3.0, 40, 8)]
    assert result.summary["completed"] == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no records"),
        ("[1]\n", "line 1: must be a JSON object"),
        ("{\n", "line 1: not JSON"),
        ('{"t": 0}\n', "line 1: missing field 'client'"),
        (lines([RECORDS[0] | {"prompt_len": 0}]), "field 'prompt_len' = 0: must be at least 1"),
        (lines([RECORDS[0] | {"t": "now"}]), "field 't' = 'now'"),
        (lines([RECORDS[0] | {"output_len": 2.5}]), "field 'output_len' = 2.5"),
        # values that no record of a run can hold
        (lines([RECORDS[0] | {"prompt_len": 2**63}]), "'prompt_len' must be at most 10000000"),
        (lines([RECORDS[0] | {"output_len": 10**12}]), "'output_len' must be at most 10000000"),
        (lines([RECORDS[0] | {"client": 2**40}]), "'client' must be at most 2147483647"),
        (lines([RECORDS[0] | {"t": 1e300}]), "'t' must be at most 10000000000"),
        (lines(reversed(RECORDS)), "line 2: t = 1.5: must not be before t of the previous line"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(trace, text, said):
    with pytest.raises(DataError, match=said):
        sent(trace(text), 0)


def test_settings_impossible_for_a_trace_are_refused(trace):
    kind = trace()
    with pytest.raises(
        UsageError,
        match="misbehaving: not supported for a trace, which sets the arrival times of all clients",
    ):
        kind.misbehaving(TrafficLoad(0, 1.0, 1.0, None, inf), 2.0, None)
    with pytest.raises(UsageError, match="burstiness = 2"):
        sent(kind, 0, burstiness=2.0)
    with pytest.raises(UsageError, match="request_rate = inf"):
        sent(kind, 0, programs_per_s=inf)


def test_a_missing_trace_is_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAIRBENCH_DATA", raising=False)
    with pytest.raises(
        DataError,
        match=": no such file in the current folder or in FAIRBENCH_DATA, which is not set",
    ):
        sent(traffic_kind("trace", {"file": "gone.jsonl"}), 0)
