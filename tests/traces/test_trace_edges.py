"""Test unusual traces: distant times, units, missing numbers, simultaneous steps, made-up parts."""

import gzip
import json
from dataclasses import replace
from math import inf
from random import Random

import pytest
from typer.testing import CliRunner

import fairbench
from fairbench.cli.app import app
from fairbench.config.resolve import experiment
from fairbench.errors import DataError, UsageError
from fairbench.workloads.trace_workload import plain_names, trace_manifest, trace_workload
from fairbench.workloads.traces.read import TraceParams, read_trace
from fairbench.workloads.traffic.arrivals import TrafficLoad
from fairbench.workloads.traffic.recorded import ReplayTraffic
from fairbench_logs.records.cells import nanoseconds
from fairbench_logs.records.requests import read_requests
from fairbench_logs.traces import read as read_module
from fairbench_logs.traces.facts import facts_of_table, shared_prefixes

DAYS = ("9999-12-31", "0001-01-01", "2250-01-01", "1700-01-01")


@pytest.fixture
def read(tmp_path):
    def read(text, **params):
        path = tmp_path / "log"
        path.write_text(text if isinstance(text, str) else "\n".join(map(json.dumps, text)))
        return read_trace(TraceParams(str(path), **params)).trace

    return read


def test_clients_of_a_trace_arrive_as_recorded_and_no_other_way(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("t,isl,osl\n0,5,1\n8,6,1\n")
    kind, load = ReplayTraffic(TraceParams(str(path))), TrafficLoad(0, 1.0, 1.0, None, inf)
    arrivals = kind.misbehaving(load, 1, None).arrivals(Random(0))
    assert [one.at_s for one in arrivals] == [0.0, 8.0]
    for rate_multiple, until_fraction in ((2, None), (1, 0.5)):
        with pytest.raises(UsageError, match="misbehaving: not supported for a trace"):
            kind.misbehaving(load, rate_multiple, until_fraction)


def test_a_trace_longer_than_the_clock_is_refused_unless_a_part_is_played(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("t,isl,osl\n0,5,1\n8,6,1\n10000000,7,1\n")  # 115.7 days
    with pytest.raises(
        UsageError, match="lasts 116 days at time_scale = 1, and at most 100 days are"
    ):
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
def test_too_distant_a_time_is_refused(value, unit):
    with pytest.raises((ValueError, OverflowError)):
        nanoseconds(value, unit)
    assert nanoseconds("2115-12-31T00:00:00Z", "s") == 4607193600 * 10**9
    assert nanoseconds(2**62 - 1, "ns") == 2**62 - 1


def test_the_largest_distance_of_times_does_not_overflow(read):
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


def test_a_latency_needs_a_unit_if_the_unit_of_times_is_guessed(read):
    with pytest.raises(
        DataError, match=r"log: latency = 1500: the unit is unknown.*latency_ms=lat"
    ):
        read("time,latency,isl,osl\n1714564800000,1500,1,1\n")


def test_a_request_without_any_known_field_is_left_out(read):
    log = [{"time": 1, "prompt": "hello", "output_tokens": 5}]
    for more in ({"prompt": ""}, {"messages": []}, {"prompt": None}, {"output_tokens": None}):
        trace = read([*log, {**log[0], "prompt": "x", **more}, {"t": 1, "isl": "", "osl": 3}])
        left_out = 1 + (more != {"messages": []})
        assert (trace.left_out, len(trace.table())) == (left_out, 3 - left_out)
    assert read("t,isl,osl\n1,,2\n2,3,4\n").left_out == 1


def test_a_window_of_too_many_requests_is_refused(read):
    lens = {"0": {"input_tokens": [[5], [1]], "output_tokens": [[5], [1]]}}
    for window in ([0, 99999, 1, "Gamma"], [9.9e11, 1, 1, "Gamma"]):
        with pytest.raises(DataError, match=r"line 1: windows: .* with a rate of at most 5,000/s"):
            read([{"client": 1, "windows": [window], "lens": lens}])


def test_times_of_logs_are_in_nanoseconds_at_any_size(read):
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


def test_simultaneous_steps_keep_their_recorded_distance(read):
    steps = [
        {"time": t, "end": e, "session": "s", "input_tokens": 10, "output_tokens": 1}
        for t, e in ((0, 20), (8, 22), (25, 30))
    ]
    ((_, program),) = read(steps).programs(0, None, 2.0)
    assert [(call.gap_s, call.think_s) for call in program.calls] == [(4, 0), (0, 1.5), (0, 0)]


def test_synthetic_parts_stay_marked_when_written(tmp_path):
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


@pytest.mark.parametrize("tokens", [340, 500, 200, 50])
def test_equal_texts_are_fully_shared_at_any_stated_length(read, tokens):
    text = "In the beginning was a prompt of some length, and it went on. " * 20
    log = [{"t": at, "prompt": text, "isl": tokens, "osl": 1} for at in range(10)]
    assert shared_prefixes(read(log).table())["infinite_hit_rate"] == 0.9
    log.append({"t": 10, "prompt": text[:-1] + "!", "isl": tokens, "osl": 1})
    table = read(log).table()
    first, size = table.first_block.tolist(), table.block_size.tolist()[0]
    assert table.blocks[first[9] - 1] != table.blocks[first[10] :][-1]
    assert 0 < table.input_tokens[0] - (first[1] - 1) * size <= size


def test_the_block_size_is_the_median_and_does_not_guess_cut_parts(read):
    text = "x" * 920  # ten blocks of 92 characters, about 200 tokens
    log = [{"t": n, "prompt": text, "isl": isl, "osl": 1} for n, isl in enumerate((400, 400, 90))]
    table = read([*log, {"t": 3, "prompt": text, "isl": 1000, "osl": 1}]).table()
    assert table.block_size.tolist() == [40] * 4
    assert (table.first_block[1:] - table.first_block[:-1]).tolist() == [10, 10, 3, 10]


def test_logs_that_begin_with_other_events_are_recognised(read, tmp_path):
    meta = {"prompt_tokens": 3, "completion_tokens": 4, "e2e_latency": 1.5}
    log = [
        *({"event": "server.start"} for _ in range(99)),
        {"event": "request.finished", "rid": "1", "timestamp": 9, "out": {"meta_info": meta}},
    ]
    assert read(log).table().input_tokens.tolist() == [3]
    assert read(log, format="sglang").table().input_tokens.tolist() == [3]
    assert read([{"event": "server.start"}, *log]).table().end_s.tolist() == [1.5]


@pytest.mark.parametrize(
    ("record", "form", "unit"),
    [
        ({"timestamp": 1714564800}, "jsonl", "s, by their size"),
        ({"timestamp": 27000}, "mooncake", "ms"),
        ({"timestamp": 27000, "client": "x"}, "jsonl", "s, by their size"),
        ({"timestamp_ms": 27000}, "jsonl", "ms"),
        ({"timestamp": "2024-05-01T12:00:00Z"}, "mooncake", "ISO 8601"),
    ],
)
def test_the_detected_format_and_unit_are_reported(tmp_path, record, form, unit):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(record | {"input_length": 9, "output_length": 5, "hash_ids": []}))
    found = read_trace(TraceParams(str(path)))
    assert (found.format, found.unit) == (form, unit)
    shown = CliRunner().invoke(app, ["trace", "inspect", str(path)])
    assert f"from the first to the last, in {unit}" in shown.stdout


def test_epoch_seconds_are_not_taken_as_milliseconds_in_format_mooncake(tmp_path):
    path = tmp_path / "log.jsonl"
    record = {"input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    times = (1_700_000_000, 1_700_000_003.5)
    path.write_text("\n".join(json.dumps(record | {"timestamp": at}) for at in times))
    found = read_trace(TraceParams(str(path), format="mooncake"))
    assert (found.unit, found.trace.table().span_s) == ("s, by their size", 3.5)
    assert found.trace.table().input_tokens.tolist() == [600, 600]


@pytest.mark.parametrize(("unit", "span_s"), [("", 0.0035), ("s", 3.5), ("us", 3.5e-6)])
def test_the_given_unit_overrides_the_unit_of_the_format(tmp_path, unit, span_s):
    path = tmp_path / "log.jsonl"
    record = {"input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    path.write_text("\n".join(json.dumps(record | {"timestamp": at}) for at in (1, 4.5)))
    found = read_trace(TraceParams(str(path), format="mooncake", time_unit=unit))
    assert found.trace.table().span_s == pytest.approx(span_s)


@pytest.mark.parametrize("mark", ["\t", ";"])
def test_other_separators_of_columns_are_recognised_by_the_header(read, mark):
    text = 't,user,isl,osl\n0,"a,b",5,1\n'.replace(",", mark, 3).replace('",', f'"{mark}')
    table = read(text.replace("0,", f"0{mark}").replace("5,1", f"5{mark}1")).table()
    assert (table.clients, table.input_tokens.tolist()) == (("a,b",), [5])


def test_a_secret_column_names_clients_only_on_request(read):
    text = "t,api_key,isl,osl\n0,sk-1,5,1\n"
    assert read(text).clients == ("all",)
    assert read(text, columns="client=api_key").clients == ("sk-1",)


def test_valid_names_stay_and_changed_ones_are_reported(tmp_path):
    assert plain_names(["a b", "a_b", "a.b"]) == ("a_b_2", "a_b", "a_b_3")
    path = tmp_path / "log.csv"
    path.write_text("t,user,isl,osl\n0,a b,5,1\n0,a_b,5,1\n")
    workload = trace_workload(TraceParams(str(path)))
    assert trace_manifest(workload)["trace_renamed"] == "a_b_2 = a b"


def test_long_names_are_counted_as_memory(read, monkeypatch):
    monkeypatch.setenv("FAIRBENCH_READ_MIB", "1")
    rows = "".join(f"{n},{n:0999d},1,1\n" for n in range(300))
    with pytest.raises(DataError, match="is too large"):
        read("t,user,isl,osl\n" + rows)
    assert len(read("t,user,isl,osl\n" + rows.replace("0" * 990, "")).table()) == 300
    same = "".join(f"{n},{'x' * 999},1,1\n" for n in range(300))  # one name, in memory once
    assert len(read("t,user,isl,osl\n" + same).table()) == 300


def test_a_client_without_requests_has_no_facts(read):
    table = read("t,user,isl,osl\n0,a,5,1\n1,b,6,1\n").table()
    facts = facts_of_table(replace(table, clients=("a", "b", "c")))
    assert [(one["client"], one["input_tokens"]) for one in facts["clients"]] == [
        ("a", 5),
        ("b", 6),
    ]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (
            ("2026-01-01T00:00:00Z", "5"),
            "line 3: t = 5: is not a date, unlike the times before it, .* all dates or all seconds",
        ),
        (
            ("5", "1767225600"),
            "line 3: t = 1767225600: is a date, unlike the times before it",
        ),
    ],
)
def test_a_date_beside_seconds_from_a_start_is_refused(read, rows, problem):
    with pytest.raises(DataError, match=problem):
        read("t,isl,osl\n" + "".join(f"{row},5,1\n" for row in rows))


def test_dates_may_be_written_in_two_ways(read):
    trace = read("t,isl,osl\n2026-01-01T00:00:00Z,5,1\n1767225602.5,5,1\n")
    assert trace.span_s == 2.5


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (
            gzip.compress(b"t,isl,osl\n1,5,1\n", mtime=0),
            "is compressed with gzip; rename it so that it ends in .gz",
        ),
        (b"PK\x03\x04rest", "is a spreadsheet or a zip archive: save it as CSV"),
        (b"PAR1rest", "is Parquet: save it as CSV or JSON lines"),
        ("t,isl,osl\n1,5,1\n".encode("utf-16"), "is UTF-16: save it as UTF-8"),
        (b't,isl,osl,c\n1,5,1,"a\n2,5,1,b\n', "line 3: not CSV: unexpected end of data"),
    ],
)
def test_an_invalid_csv_is_named(tmp_path, start, problem):
    path = tmp_path / "export.csv"
    path.write_bytes(start)
    with pytest.raises(DataError, match=problem):
        read_trace(TraceParams(str(path)))


def test_a_file_is_read_once_in_any_format(tmp_path, monkeypatch):
    path = tmp_path / "once.csv"
    path.write_text("t,isl,osl\n" + "".join(f"{at},5,1\n" for at in range(9)))
    tables = []

    def counted(path, *rest):
        tables.append(f"{path}")
        return read_requests(path, *rest)

    monkeypatch.setattr(read_module, "read_requests", counted)
    assert fairbench.run(trace=str(path), scheduler="fcfs").summary["completed"] == 9
    assert tables == [f"{path}"]
