"""Test session steps that are timed from the answer of the previous step."""

import json
import random

import pytest

from fairbench.errors import DataError
from fairbench.workloads.traces.read import TraceParams, read_trace
from fairbench_logs.traces.change import scaled, write_trace


@pytest.fixture
def read(tmp_path):
    def read(records, **params):
        path = tmp_path / "log.jsonl"
        path.write_text("\n".join(map(json.dumps, records)))
        return read_trace(TraceParams(str(path), **params))

    return read


def step(session, tokens, **more):
    return {"session_id": session, "input_length": tokens, "output_length": 5} | more


STEPS = [
    step("a", 100),
    step("b", 50),
    step("a", 200, delay=500),
    step("b", 60, delay=2000),
    step("a", 300, delay=0),
]


def programs(trace, speed=1.0):
    return [
        (at_s, [(call.gap_s, call.think_s) for call in item.calls])
        for at_s, item in trace.programs(0, random.Random(0), speed)
    ]


def test_delays_are_think_times_after_the_answer(read):
    """After its answers, a thinks 0.5 s and then not at all, and b thinks 2 s."""
    trace = read(STEPS).trace
    assert programs(trace) == [(0.0, [(0, 0.5), (0, 0), (0, 0)]), (0.0, [(0, 2.0), (0, 0)])]
    assert programs(trace, 2.0)[1] == (0.0, [(0, 1.0), (0, 0)])
    assert trace.table(0).arrival_s.tolist() == [0, 0, 0.5, 0.5, 2.0]


def test_a_session_may_begin_at_a_time(read):
    timed = [step("a", 9, timestamp=1000), step("b", 9, timestamp=4000), *STEPS[2:]]
    timed = [one | {"hash_ids": [1]} for one in timed]
    found = read(timed)
    assert (found.format, found.trace.clients) == ("mooncake", ("all",))
    assert [at_s for at_s, _ in programs(found.trace)] == [0.0, 3.0]
    assert programs(found.trace)[0][1][0] == (0, 0.5)


def test_sessions_in_the_form_of_mooncake_need_no_time(read):
    found = read([one | {"hash_ids": [1]} for one in STEPS])
    assert found.format == "mooncake"
    assert set(found.trace.table(0).block_size.tolist()) == {512}


@pytest.mark.parametrize(
    ("names", "columns", "think_s"),
    [({}, "", 0.5), ({"delay": "delay_s"}, "", 500), ({"delay": "w"}, "delay_us=w", 0.0005)],
)
def test_a_delay_is_in_milliseconds_unless_its_name_differs(read, names, columns, think_s):
    renamed = [{names.get(key, key): value for key, value in one.items()} for one in STEPS]
    assert programs(read(renamed, columns=columns).trace)[0][1][0] == (0, think_s)


def test_delays_are_written_and_read_again(read, tmp_path):
    table = scaled(read(STEPS).trace.table(0), 2.0)
    write_trace(table, tmp_path / "again.jsonl")
    again = read_trace(TraceParams(str(tmp_path / "again.jsonl"))).trace
    assert programs(again) == programs(read(STEPS).trace, 2.0)


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        ([step("a", 9), step("b", 9)], "line 1: no column for time"),
        (
            [step("a", 9), step("a", 9), step("a", 9, delay=3)],
            "line 2: must have a time, or a delay after the",
        ),
        ([step("a", 9), step("a", 9, delay=-3)], "line 2: delay = -3: must be at least 0"),
        ([step("a", 9), step("a", 9, delay="x")], "line 2: delay = 'x': must be a number"),
        ([step("a", 9, delay=1), step("", 9, delay=1)], "line 2: no column for time"),
        (
            [step("a", 9, delay=2), step("b", 9, timestamp=7), step("a", 9, timestamp=9000)],
            "line 3: timestamp = 9000: the first step of session 'a' has no time",
        ),
        ([{"input_length": 9, "output_length": 3, "delay": 3}], "line 1: no column for time"),
    ],
)
def test_ambiguous_input_is_refused(read, records, complaint):
    with pytest.raises(DataError) as caught:
        read(records)
    assert complaint in str(caught.value)
