"""Traces at the edges: far times, units, missing numbers, steps at once, what was made up."""

import json

import pytest
from typer.testing import CliRunner

import fairbench
from fairbench.cli.app import app
from fairbench.errors import DataError, UsageError
from fairbench.execute.requests import experiment
from fairbench.files.times import nanoseconds
from fairbench.workloads.traces.read import TraceParams, read_trace

DAYS = ("9999-12-31", "0001-01-01", "2250-01-01", "1700-01-01")


@pytest.fixture
def read(tmp_path):
    def read(text, **params):
        path = tmp_path / "log"
        path.write_text(text if isinstance(text, str) else "\n".join(map(json.dumps, text)))
        return read_trace(TraceParams(str(path), **params)).trace

    return read


def test_a_trace_longer_than_the_clock_is_refused_unless_a_part_is_played(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("t,isl,osl\n0,5,1\n8,6,1\n10000000,7,1\n")  # 115.7 days
    with pytest.raises(UsageError, match="lasts 116 days at a time_scale of 1, at most 100 can be"):
        experiment({"trace": str(path)}, {})
    with pytest.raises(UsageError, match="lasts 116 days"):
        experiment({"trace": str(path), "num_programs": 3}, {})
    for part in ({"duration": 60}, {"num_programs": 2}, {"time_scale": 2}):
        assert experiment({"trace": str(path), **part}, {}).workload.clients == 1
    for name, value in (("time_scale", 1e-308), ("time_scale", 1e300), ("clients", 300_000_000)):
        with pytest.raises(UsageError, match=rf"{name} = .*: must be (from 1e-09|at most 1,000)"):
            experiment({"trace": str(path), name: value}, {})


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        *((f"{day}T00:00:00{zone}", "s") for day in DAYS for zone in ("Z", "+09:00")),
        *((2**62, "ns"), (-(2**62), "ns"), (1e300, "s")),
    ],
)
def test_a_time_too_far_away_is_refused(value, unit):
    with pytest.raises((ValueError, OverflowError)):
        nanoseconds(value, unit)
    assert nanoseconds("2115-12-31T00:00:00Z", "s") == 4607193600 * 10**9
    assert nanoseconds(2**62 - 1, "ns") == 2**62 - 1


def test_the_most_that_times_can_be_apart_does_not_wrap(read):
    most = 2**62 - 1
    trace = read(f"time_ns,end_ns,isl,osl\n{-most},{most},1,1\n{most},,1,1\n")
    span_s = pytest.approx(2 * most / 1e9)
    assert (trace.span_s, trace.table().end_s.tolist()[0]) == (span_s, span_s)


@pytest.mark.parametrize(
    ("text", "end_s"),
    [
        ("time_ms,end,isl,osl\n1000,1500,1,1\n", 0.5),
        ("time_ms,latency,isl,osl\n1000,1500,1,1\n", 1.5),
        ("time,end,isl,osl\n1714564800000,1714564801500,1,1\n", 1.5),
        ("time,latency_ms,isl,osl\n1714564800000,1500,1,1\n", 1.5),
        ("time,latency,isl,osl\n1714564800,2,1,1\n", 2.0),
        ("time,latency,isl,osl\n2024-05-01T12:00:00Z,2,1,1\n", 2.0),
    ],
)
def test_an_end_is_in_the_unit_of_its_time(read, text, end_s):
    assert read(text).table().end_s.tolist() == [end_s]


def test_a_latency_beside_times_whose_unit_is_guessed_has_to_say_its_own(read):
    with pytest.raises(DataError, match=r"line 2: latency = '1500': in what unit.*latency_ms=lat"):
        read("time,latency,isl,osl\n1714564800000,1500,1,1\n")


def test_a_request_of_which_nothing_is_known_is_left_out(read):
    log = [{"time": 1, "prompt": "hello", "output_tokens": 5}]
    for more in ({"prompt": ""}, {"messages": []}, {"prompt": None}, {"output_tokens": None}):
        trace = read([*log, {**log[0], "prompt": "x", **more}, {"t": 1, "isl": "", "osl": 3}])
        left_out = 1 + (more != {"messages": []})
        assert (trace.left_out, len(trace.table())) == (left_out, 3 - left_out)
    assert read("t,isl,osl\n1,,2\n2,3,4\n").left_out == 1


def test_a_window_of_too_many_requests_is_refused(read):
    lens = {"0": {"input_tokens": [[5], [1]], "output_tokens": [[5], [1]]}}
    for window in ([0, 99999, 1, "Gamma"], [9.9e11, 1, 1, "Gamma"]):
        with pytest.raises(DataError, match=r"line 1: windows: .* the rate at most 1,667/s"):
            read([{"client": 1, "windows": [window], "lens": lens}])


def test_times_of_logs_are_in_nanoseconds_whatever_their_size(read):
    usage = {"gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 4}
    spans = [
        {"attributes": usage, "startTimeUnixNano": str(at), "endTimeUnixNano": at + 5}
        for at in (10**9, 3 * 10**9)
    ]
    table = read(spans).table()
    assert (table.arrival_s.tolist(), table.end_s.tolist()) == ([0, 2], [5e-9, 2 + 5e-9])
    meta = {"prompt_tokens": 3, "completion_tokens": 4, "e2e_latency": 1.5}
    line = {"event": "request.finished", "rid": "1", "out": {"meta_info": meta}}
    table = read([{**line, "timestamp": at} for at in (1714564805.5, 1714564806.0)]).table()
    assert (table.arrival_s.tolist(), table.end_s.tolist()) == ([0, 0.5], [1.5, 2.0])


def test_steps_at_once_keep_their_recorded_distance(read):
    steps = [
        {"time": t, "end": e, "session": "s", "input_tokens": 10, "output_tokens": 1}
        for t, e in ((0, 20), (8, 22), (25, 30))
    ]
    ((_, program),) = read(steps).programs(0, None, 2.0)
    assert [(call.gap_s, call.think_s) for call in program.calls] == [(4, 0), (0, 1.5), (0, 0)]


def test_what_was_made_up_still_is_in_what_is_written_of_it(tmp_path):
    lens = {"0": {"input_tokens": [[5], [1]], "output_tokens": [[5], [1]]}}
    path = tmp_path / "0.jsonl"
    windows = [[0, 0.02, 1, "Gamma"]]
    path.write_text(json.dumps({"client": 1, "windows": windows, "lens": lens}))
    for number, command in enumerate(["cut --head 5", "scale --rate 2", "anonymize"]):
        name, *flags = command.split()
        files = [f"{tmp_path}/{number}.jsonl", "-o", f"{tmp_path}/{number + 1}.jsonl"]
        done = CliRunner().invoke(app, ["trace", name, *files, *flags])
        assert done.exit_code == 0, done.output
    drawn = "times and lengths are drawn from measured windows"
    summary = fairbench.run(trace=f"{tmp_path}/3.jsonl", scheduler="fcfs").summary
    assert (summary["workload"], summary["synthetic"]) == ("trace-3-synthetic", drawn)
    assert f"SYNTHETIC: {drawn}" in CliRunner().invoke(app, ["trace", "inspect", files[2]]).stdout
