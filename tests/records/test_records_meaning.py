"""Test how a log is interpreted: units, prompts, spans, nulls, states and hints."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import DataError
from fairbench.metrics.records import FINISHED
from fairbench.workloads.traces.read import TraceParams, read_trace
from fairbench_logs.diagnosis.access_log import read_log
from fairbench_logs.records.cells import duration_s
from fairbench_logs.records.column_names import can_hold, nearest, parse_map, plain, split_unit
from fairbench_logs.scoring.records import read_scored

ROW = {"client": "a", "time": 0.0, "ttft": 0.5, "latency": 2.5}
ROW |= {"input_tokens": 100, "output_tokens": 50}


@pytest.fixture
def write(tmp_path):
    def write(rows, name="log.jsonl"):
        text = rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def without(row, *keys):
    return {key: value for key, value in row.items() if key not in keys}


def rows_of(**columns):
    """Return six rows, five seconds apart. ``...`` removes a field of ``ROW``."""
    rows = []
    for n in range(6):
        row = ROW | {"time": 5.0 * n, "client": "ab"[n % 2]}
        row |= {key: one(n) if callable(one) else one for key, one in columns.items()}
        rows.append({key: value for key, value in row.items() if value is not ...})
    return rows


def both(path, **more):
    """Return a file as ``score`` and as ``trace`` read it."""
    return read_scored([path], **more), read_trace(TraceParams(str(path))).trace.table(0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("1.5s", 1.5), ("350ms", 0.35), ("1m2.5s", 62.5), ("2h0m1s", 7201.0), ("80us", 8e-5)),
        *(("150µs", 1.5e-4), ("PT2.5S", 2.5), ("0:00:02.250", 2.25), ("1 day, 0:00:01", 86401.0)),
        *(("12 ms", 0.012), ("3 seconds", 3.0), ("fast", None), ("1.5", None), ("", None)),
        *(("1.5s x", None), (3, None), ("s", None), ("9" * 50 + "s", None)),
    ],
)
def test_durations_may_have_their_own_units(text, seconds):
    assert duration_s(text) == (seconds if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("ttft", ["500ms", "0.5s", "0:00:00.500", "PT0.5S"])
def test_durations_with_units_are_read_by_every_command(write, ttft):
    scored, table = both(write(rows_of(ttft=ttft, latency="2s500ms")))
    assert (scored.requests.first_token_s - scored.requests.arrival_s).tolist() == [0.5] * 6
    assert (table.end_s - table.arrival_s).tolist() == [2.5] * 6


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(("ttft_ms", ("ttft", "ms")), ("latencyMs", ("latency", "ms"))),
        *(("Duration (s)", ("Duration", "s")), ("time.us", ("time", "us"))),
        *(("ttft[ns]", ("ttft", "ns")), ("delayMilliseconds", ("delay", "ms"))),
        *(("items", ("items", None)), ("ms", ("ms", None)), ("a_s_", ("a", "s"))),
    ],
)
def test_units_in_names(name, expected):
    assert split_unit(name) == expected


SEMICOLONS = "start_time;user;ttft_s;latency_s;prompt_tokens;completion_tokens\n"


@pytest.mark.parametrize(
    ("ttft", "latency"), [("0,5", "2,5"), ("0,500", "2,500"), ("0,50", "2,500")]
)
@pytest.mark.parametrize("mark", [";", "\t"])
def test_a_decimal_comma_is_read_as_one(write, ttft, latency, mark):
    lines = "".join(f"{n};a;{ttft};{latency};100;50\n" for n in range(3))
    path = write((SEMICOLONS + lines).replace(";", mark), "log.csv")
    scored, table = both(path)
    assert scored.last_token_s.tolist() == [2.5, 3.5, 4.5]
    assert table.end_s.tolist() == [2.5, 3.5, 4.5]


def test_commas_that_only_semicolons_explain_are_decimal_commas(write):
    lines = "".join(f"{n};a;1,250;2,500;100;50\n" for n in range(3))
    assert both(write(SEMICOLONS + lines, "log.csv"))[0].last_token_s.tolist() == [2.5, 3.5, 4.5]


def test_commas_that_may_be_decimal_or_not_are_refused(write):
    """1,328 s is 1,328 s or 1.328 s: unlike milliseconds, seconds may have three decimals."""
    path = write(rows_of(ttft=..., latency=..., ttft_s="1,328", latency_s="2,084"))
    with pytest.raises(DataError, match="_s = 1,328: the comma may separate thousands or decimals"):
        read_scored([path])
    with pytest.raises(DataError, match="latency_s = 2,084: the comma may separate"):
        read_trace(TraceParams(str(path)))
    path = write(rows_of(latency="2,084"))
    with pytest.raises(DataError, match="latency = 2,084: the comma may separate"):
        read_trace(TraceParams(str(path), time_unit="s"))
    assert read_trace(TraceParams(str(path), time_unit="ms")).trace.table(0).end_s[0] == 2.084


def test_points_between_thousands_of_milliseconds_stand_beside_whole_numbers(write):
    lines = "0;a;328;1.084;100;50\n1;a;208;750;100;50\n"
    header = SEMICOLONS.replace("ttft_s;latency_s", "ttft_ms;latency_ms")
    path = write(header + lines, "log.csv")
    scored, table = both(path)
    assert scored.requests.first_token_s.tolist() == [0.328, 1.208]
    assert scored.last_token_s.tolist() == table.end_s.tolist() == [1.084, 1.75]
    decimals = write(header + "0;a;0.250;1.5;100;50\n1;a;3;20;100;50\n", "log.csv")
    assert read_scored([decimals]).requests.first_token_s.tolist() == [0.00025, 1.003]


def test_thousands_of_milliseconds_stay_thousands(write):
    scored, table = both(
        write(rows_of(ttft=..., latency=..., ttft_ms="1,500", latency_ms="12,500"))
    )
    assert (scored.requests.first_token_s - scored.requests.arrival_s).tolist() == [1.5] * 6
    assert (table.end_s - table.arrival_s).tolist() == [12.5] * 6


@pytest.mark.parametrize(
    "columns",
    [
        {"latency": 2500, "ttft": ...},  # 50 tokens would take 51 s each
        {"latency": lambda n: 300 + n, "output_tokens": 1, "ttft": ...},
        {"latency": lambda n: 90 + 10 * n, "output_tokens": 400, "ttft": ...},  # whole numbers
        {"latency": 2500.5, "ttft": 500.25},
    ],
)
def test_a_length_of_time_that_cannot_be_in_seconds_is_asked_for(write, columns):
    path = write(rows_of(**columns))
    with pytest.raises(DataError, match=r"--map latency_ms=latency or --map latency_s=latency"):
        read_trace(TraceParams(str(path)))
    with pytest.raises(DataError, match="latency_ms=latency"):
        read_log(TraceParams(str(path)))
    named = read_trace(TraceParams(str(path), columns="latency_ms=latency")).trace.table(0)
    assert (named.end_s - named.arrival_s).max() < 3
    told = read_trace(TraceParams(str(path), time_unit="s")).trace.table(0)
    assert (told.end_s - told.arrival_s).min() > 80


@pytest.mark.parametrize(
    "columns",
    [
        {"latency": lambda n: 20.5 + n},
        {"latency": lambda n: [2, 300][n % 2], "ttft": 1},  # half of the answers wait
        {"latency": 3, "ttft": 1},
    ],
)
def test_plausible_seconds_are_seconds(write, columns):
    scored, table = both(write(rows_of(**columns)))
    took_s = (table.end_s - table.arrival_s).tolist()
    assert took_s == pytest.approx((scored.last_token_s - scored.requests.arrival_s).tolist())
    assert 2 <= min(took_s) <= 25


def test_a_first_token_after_the_end_asks_for_its_unit(write):
    path = write(rows_of(ttft=350, latency=..., latency_ms=2500))
    with pytest.raises(DataError, match=r"ttft = 350: .* --map ttft_ms=ttft"):
        read_scored([path])
    scored = read_scored([path], names={"ttft_ms": "ttft"})
    assert scored.requests.first_token_s[0] == pytest.approx(0.35)


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_a_delay_is_in_milliseconds_whatever_the_unit_of_the_time(write, unit):
    at = {"s": 1_795_154_400, "ms": 1_795_154_400_000, "us": 1_795_154_400_000_000}[unit]
    first = without(ROW, "time", "ttft", "latency") | {"session": "x"}
    rows = [first | {"timestamp": at}, first | {"delay": 2000}, first | {"delay": 1500}]
    table = read_trace(TraceParams(str(write(rows)))).trace.table(0)
    assert table.think_s[1:].tolist() == [2.0, 1.5]


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"ttft": 0.328, "latency": 1.084}, "latency = 1.084: in ms, even slow answers would take"),
        ({"ttft": 0.328, "latency": ..., "end_ms": lambda n: 5000 * n + 1084}, "ttft = 0.328"),
    ],
)
def test_seconds_beside_a_start_in_ms_are_not_read_as_ms(write, columns, complaint):
    path = write(rows_of(time=..., arrival_ms=lambda n: 5000 * n, **columns))
    with pytest.raises(DataError, match=f"{complaint}.* --map .*_s="):
        read_scored([path])


@pytest.mark.parametrize(
    ("latency", "unit"), [(1084, "ms"), (1_084_000, "us"), (1_084_000_000, "ns")]
)
def test_the_probable_unit_gives_a_plausible_time_per_token(write, latency, unit):
    """An answer of 50 tokens takes 1.084 s."""
    path = write(rows_of(latency=lambda n: latency + n, ttft=...))
    with pytest.raises(DataError, match=f"is probably {unit}; give it with --map latency_{unit}="):
        read_trace(TraceParams(str(path)))


@pytest.mark.parametrize(
    ("time", "complaint"),
    [
        (lambda n: 20251009085320 + n, "time = 20251009085320: must be a number .in s. or an ISO"),
        (lambda n: 45939.375 + n / 86400, "time = 45939.375: is either a spreadsheet's date or a"),
        (lambda n: 45000 + 0.4 * n, "time = 45000: is either a spreadsheet's date or a"),  # 2 days
    ],
)
def test_numbers_that_are_no_known_dates_are_refused(write, time, complaint):
    path = write(rows_of(time=time))
    for read in (lambda: read_scored([path]), lambda: read_trace(TraceParams(str(path)))):
        with pytest.raises(DataError, match=complaint):
            read()
    seconds = read_scored(
        [write(rows_of(time=lambda n: 45939.5 + n / 8))], names={"start_s": "time"}
    )
    assert seconds.requests.arrival_s.tolist() == [0.0, 0.125, 0.25, 0.375, 0.5, 0.625]
    whole = read_scored([write(rows_of(time=lambda n: 45000 + 2 * n))])
    assert whole.requests.arrival_s.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


@pytest.mark.parametrize(
    ("zone", "seconds"), [("+0200", 0.0), ("+02", 0.0), (" PM", None), ("garbage", None)]
)
def test_what_follows_microseconds_is_read_or_refused(write, zone, seconds):
    """10:00 at +02:00 is 08:00 UTC, the end of the first hour of zone +01:00 is 09:00."""
    path = write(rows_of(time=lambda n: f"2026-11-20 1{n // 3}:00:00.000000{zone}"))
    if seconds is None:
        with pytest.raises(DataError, match="must be a number or an ISO 8601 time"):
            read_scored([path])
        return
    scored = read_scored([path])
    assert scored.requests.arrival_s.tolist() == [0.0] * 3 + [3600.0] * 3
    assert scored.clock.at(0.0)[:19] == "2026-11-20 10:00:00"


def test_a_change_of_the_offset_is_no_change_of_the_time(write):
    """Summer time ends between 02:59:59+02 and 02:00:01+01, two seconds later."""
    texts = ["2025-10-26 02:59:59.000000+02", "2025-10-26 02:00:01.000000+01"]
    scored, table = both(write(rows_of(time=lambda n: texts[n // 3])))
    assert scored.requests.arrival_s.tolist() == table.arrival_s.tolist() == [0.0] * 3 + [2.0] * 3


@pytest.mark.parametrize("end", ["2026-11-20T08:00:02.5", "2026-11-20T04:00:02.5"])
@pytest.mark.parametrize("kind", [str, int, float, "{}".format])
def test_an_offset_that_only_one_of_two_times_states_is_asked_for(write, end, kind):
    """1,795,154,400 s after 1970, it is 2026-11-20 06:00:00 UTC."""
    time = "2026-11-20T06:00:00Z" if kind is str else kind(1_795_154_400)
    columns = {"time": time, "latency": ..., "end": end}
    path = write(rows_of(**columns))
    for read in (lambda: read_scored([path]), lambda: read_trace(TraceParams(str(path)))):
        with pytest.raises(DataError, match=r"are 7,.* s apart, and only one of them states a UTC"):
            read()
    scored, table = both(write(rows_of(**columns | {"end": "2026-11-20T06:00:02.5"})))
    assert scored.last_token_s.tolist() == table.end_s.tolist() == [2.5] * 6


def test_ends_without_a_start_on_their_clock_are_not_compared_with_offsets(write):
    row = without(ROW, "time", "ttft", "latency") | {"session": "s"}
    delays = [row | {"delay": 0, "end": 2.0}, row | {"delay": 2000, "end": 5.0}]
    assert read_trace(TraceParams(str(write(delays)))).trace.table(0).end_s.tolist() == [2, 5]
    rows = [row | {"time": f"2026-11-20T06:00:0{n}Z", "end": None} for n in range(3)]
    rows[0] |= {"output_tokens": 0, "end": "2026-11-20 06:00:02"}  # a failed request
    assert len(read_trace(TraceParams(str(write(rows)))).trace.table(0)) == 2
    path = write(rows_of(time=lambda n: f"2026-11-20 06:00:0{n}", latency=..., end=1.5))
    with pytest.raises(DataError, match="if end is a length of time, --map latency=end"):
        read_scored([path])


def test_durations_beside_dates_are_no_arrivals(write):
    rows = [
        without(ROW, "time") | {"logged": f"2026-11-20T06:00:{n:02d}Z", "request_time": 1.5}
        for n in range(4)
    ]
    with pytest.raises(DataError, match="no column for time"):
        read_trace(TraceParams(str(write(rows))))


@pytest.mark.parametrize(
    ("cells", "whole", "cached"),
    [
        ({"input_tokens": 12, "cache_read_input_tokens": 800}, 812, 800),
        ({"inputTokens": 12, "cacheReadInputTokens": 800, "cacheWriteInputTokens": 90}, 902, 800),
        ({"input_tokens": 900, "cache_read_input_tokens": 800, "total_tokens": 950}, 900, 800),
        ({"prompt_tokens": 900, "prompt_tokens_details": {"cached_tokens": 800}}, 900, 800),
        ({"prompt_tokens": 900, "cached_tokens": 800}, 900, 800),
        ({"prompt_tokens": 100, "prompt_cache_read_tokens": 800}, 900, 800),
        ({"usage": {"input_tokens": 5, "cache_creation_input_tokens": 70}}, 75, 0),
    ],
)
def test_prompts_are_counted_whole(write, cells, whole, cached):
    rows = [without(one, "input_tokens") | cells for one in rows_of()]
    scored, table = both(write(rows))
    assert scored.requests.input_tokens.tolist() == [whole] * 6
    assert scored.requests.cached_tokens.tolist() == [cached] * 6
    assert table.input_tokens.tolist() == [whole] * 6


def test_lines_of_one_request_count_once_and_repeated_ids_do_not(write):
    timed = rows_of(request_id="same")  # each has its own start and duration
    assert len(read_scored([write(timed)]).requests.client) == 6
    again = [row for row in rows_of(request_id=lambda n: f"r{n}") for _ in range(3)]
    scored, table = both(write(again))
    assert (len(scored.requests.client), len(table)) == (6, 6)
    assert scored.remarks == (
        "12 lines, each of which repeats the id of a request, and counts as a part of this request",
    )
    numbers = rows_of(id=1, ttft=..., latency=...)  # an id of something else
    assert len(read_trace(TraceParams(str(write(numbers)))).trace.table(0)) == 6


@pytest.mark.parametrize(
    "columns",
    [
        {"user": lambda n: {"id": "ab"[n % 2]}, "client": ...},
        {"model": {"id": "llama"}},
        {"id": "resp"},  # of both clients
        {"message_id": "m0", "client": "a"},
        {"request_id": "r0"},  # of both clients
    ],
)
def test_ids_of_other_things_merge_no_requests(write, columns):
    rows = [row for n in range(4) for row in rows_of(ttft=..., latency=..., **columns)]
    assert len(read_trace(TraceParams(str(write(rows)))).trace.table(0)) == 24


def test_the_line_with_the_most_output_describes_a_request(write):
    first = {"output_tokens": 0, "ttft": None, "latency": 0.1, "error": "cut", "prompt": "x" * 500}
    partial = {"output_tokens": 20, "latency": 1.0}
    rows = [row | {"id": f"r{n}"} for n, row in enumerate(rows_of())]
    path = write([row | more for row in rows for more in (first, partial, {})])
    scored, table = both(path)
    assert (scored.failed, scored.requests.output_tokens.tolist()) == (0, [50] * 6)
    assert (scored.last_token_s - scored.requests.arrival_s).tolist() == [2.5] * 6
    assert (table.end_s - table.arrival_s).tolist() == [2.5] * 6
    assert len(table.blocks) == 6 * 6  # the prompt that only the first line states
    shown = CliRunner().invoke(app, ["trace", "inspect", str(path)]).stdout
    assert "12 lines repeat the id of a request" in shown


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"output_tokens": 49}, {"ttft": ..., "latency": ...}),
        ({"output_tokens": 0, "latency": ...}, {"ttft": ...}),
        ({"output_tokens": 0, "ttft": 0.1, "latency": 9.0}, {}),
        ({"output_tokens": 0, "ttft": 0.1, "latency": ..., "end": 99}, {}),
        ({"output_tokens": 0, "status": "failed", "success": False}, {}),
    ],
)
def test_a_value_that_only_the_first_line_of_a_request_states_is_kept(write, first, second):
    rows = [
        row | {"id": f"r{n}"} | more for n, row in enumerate(rows_of()) for more in (first, second)
    ]
    rows = [{key: one for key, one in row.items() if one is not ...} for row in rows]
    scored, table = both(write(rows))
    assert (scored.failed, scored.requests.output_tokens.tolist()) == (0, [50] * 6)
    assert (scored.requests.first_token_s - scored.requests.arrival_s).tolist() == [0.5] * 6
    assert (table.end_s - table.arrival_s).tolist() == [2.5] * 6
    assert (scored.last_token_s - scored.requests.arrival_s).tolist() == [2.5] * 6


def test_a_repeated_step_keeps_its_place_and_its_delay(write):
    row = without(ROW, "time", "ttft", "latency") | {"session": "s"}
    steps = [row | {"id": "x", "time": 0, "output_tokens": 1}, row | {"id": "y", "time": 0}]
    steps += [steps[0] | {"output_tokens": 9}]
    steps += [row | {"id": "z", "delay": 2000}, row | {"id": "z", "output_tokens": 70}]
    table = read_trace(TraceParams(str(write(steps)))).trace.table(0)
    assert table.output_tokens.tolist() == [9, 50, 70]
    assert table.think_s[2] == 2.0


@pytest.mark.parametrize(
    ("column", "missing"),
    [
        ({"user": {"created_at": 5}, "time": ...}, "start"),
        ({"account": {"plan": {"start": 5}}, "time": ...}, "start"),
        ({"model_info": {"created": 5}, "time": ...}, "start"),
        ({"limits": {"input_tokens": 8192}, "input_tokens": ...}, "input_tokens"),
        ({"rate_limit": {"output_tokens": 8192}, "output_tokens": ...}, "output_tokens"),
        ({"slo": {"ttft": 0.5}, "ttft": ...}, "first_token or ttft"),
        ({"network": {"latency": 0.002}, "latency": ...}, "end or latency"),
        ({"ratelimit": {"user": "tier"}, "client": ...}, "client"),
    ],
)
def test_a_nested_column_of_another_meaning_is_not_read(write, column, missing):
    with pytest.raises(DataError, match=f"needs {missing}, which the file lacks") as failed:
        read_scored([write(rows_of(**column))])
    assert "Did you mean" not in str(failed.value)


@pytest.mark.parametrize("outer", ["user_request", "model_timing", "target_server", "limiter"])
def test_a_nested_column_of_a_request_is_read(write, outer):
    rows = rows_of(**{outer: lambda n: {"start_time": 5.0 * n, "latency": 2.5}}, latency=...)
    assert both(write([without(row, "time") for row in rows]))[1].end_s.tolist()[-1] == 27.5


@pytest.mark.parametrize("logged", ["time", "timestamp", "ts", "@timestamp"])
@pytest.mark.parametrize("started", ["start_time", "request_start", "arrival", "started_at"])
def test_the_start_is_read_before_the_time_of_the_log_line(write, logged, started):
    rows = rows_of(**{"time": ..., logged: lambda n: 3.0 * n + 9, started: lambda n: 5.0 * n})
    scored, table = both(write(rows))
    assert scored.requests.arrival_s.tolist() == [0, 5, 10, 15, 20, 25]
    assert table.arrival_s.tolist() == [0, 5, 10, 15, 20, 25]
    # The start of the run is no start of a request.
    assert both(write([row | {started: 7} for row in rows]))[1].arrival_s[-1] == 15


def test_a_start_is_the_start_of_the_run_only_if_every_row_repeats_it(write):
    """60 requests start at second 7 and the last starts at second 9; ``ts`` is 3 s later."""

    def table(starts):
        rows = [
            without(ROW, "time", "ttft", "latency") | {"start_time": at, "ts": at + 3 + n / 64}
            for n, at in enumerate(starts)
        ]
        return read_trace(TraceParams(str(write(rows)))).trace.table(0)

    assert table([7.0] * 60 + [9.0]).arrival_s.tolist() == [0.0] * 60 + [2.0]
    assert table([7.0] * 60).arrival_s[-1] == 59 / 64
    alone = write([without(ROW, "time", "latency") | {"start_time": 5.0, "ts": 8.0, "end": 7.5}])
    assert [one.tolist() for one in (both(alone)[0].last_token_s, both(alone)[1].end_s)] == [
        [2.5],
        [2.5],
    ]


@pytest.mark.parametrize("column", ["requests", "n_requests", "Number of requests", "calls"])
def test_a_usage_report_is_not_read_as_requests(write, column):
    with pytest.raises(DataError, match=f"{column} = 5: a row counts several requests"):
        read_trace(TraceParams(str(write(rows_of(**{column: lambda n: n})))))
    assert len(both(write(rows_of(**{column: 1})))[1]) == 6


@pytest.mark.parametrize(
    ("field", "possible", "impossible"),
    [
        ("start", [1_795_154_400, "2026-11-20T06:00:00Z", "12.5"], ["cold", "", [1]]),
        ("ttft", [0.25, "250 ms", -1], ["soon", -2]),
        ("input_tokens", [0, "12", 2**53 - 1], ["many", -1, 1.5, 2**53]),
        ("itls", [[0.1, 0.2], "[0.1, 0.2]"], [0.1]),
        ("client", ["ann", 7], [["ann"], {"name": "ann"}]),
        ("text", ["hello", [{"role": "user"}]], []),
    ],
)
def test_a_column_holds_a_field_only_if_its_values_can(field, possible, impossible):
    assert [can_hold(field, value) for value in possible] == [True] * len(possible)
    assert [can_hold(field, value) for value in impossible] == [False] * len(impossible)


def test_a_client_is_the_same_whether_its_number_is_whole_or_a_float(write):
    scored, table = both(write(rows_of(client=lambda n: (7, 7.0, "7")[n % 3])))
    assert scored.clients == table.clients == ("7",)


def test_a_column_of_words_is_no_start(write):
    scored, table = both(write(rows_of(start=lambda n: ("cold", "warm")[n % 2])))
    assert scored.requests.arrival_s.tolist() == [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]
    assert table.arrival_s.tolist() == [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]


def test_a_column_of_words_is_no_duration(write):
    scored = read_scored([write(rows_of(ttft="hot", time_to_first_token=0.5))])
    waits = scored.requests.first_token_s - scored.requests.arrival_s
    assert waits.tolist() == [0.5] * 6


@pytest.mark.parametrize("kind", ["agent", "CHAIN", "workflow"])
def test_spans_that_repeat_their_calls_are_no_requests(write, kind):
    rows = []
    for n, row in enumerate(rows_of(ttft=..., latency=...)):
        agent = {"span_id": f"a{n}", "span_kind": kind, "parent_id": None}
        middle = {"span_id": f"m{n}", "parent_id": f"a{n}", "span_kind": "custom"}
        rows += [row | agent, row | middle]
        rows += [row | {"span_id": f"c{n}", "parent_id": f"m{n}", "span_kind": "llm"}]
    table = read_trace(TraceParams(str(write(rows)))).trace.table(0)
    assert (len(table), table.input_tokens.sum()) == (6, 600)


NULLS = ["undefined", "(null)", "nil", "<nil>", "00000000-0000-0000-0000-000000000000", "-", "NULL"]


@pytest.mark.parametrize("word", NULLS)
def test_words_of_programs_for_no_value_are_no_names(write, word):
    rows = rows_of(session=word, ttft=..., latency=..., user=word, end_user="x", client=...)
    trace = read_trace(TraceParams(str(write(rows)))).trace
    assert trace.clients == ("x",)
    assert trace.count_programs(0, 1e9) == 6
    assert read_trace(TraceParams(str(write(rows)), columns="client=user")).trace.clients == (
        "all",
    )


def test_an_unknown_status_is_counted_and_the_file_is_read(write):
    scored = read_scored([write(rows_of(status=lambda n: ["ok", "meh"][n == 3]))])
    assert scored.requests.status.tolist() == [FINISHED] * 6
    assert scored.remarks == (
        "1 request that has the unknown status 'meh', and is judged by the other fields",
    )


@pytest.mark.parametrize("nothing", [None, "", "undefined"])
def test_a_success_without_output_tokens_stops_nothing(write, nothing):
    rows = rows_of(output_tokens=lambda n: nothing if n == 2 else 50, status=200)
    rows[2]["ttft"] = None
    path = write(rows)
    scored = read_scored([path])
    assert (len(scored.requests.client), scored.failed) == (6, 0)
    assert "ended without a count of output tokens" in scored.remarks[0]
    assert len(read_log(TraceParams(str(path))).traffic.client) == 6


def test_a_log_with_first_tokens_alone_is_judged_by_the_log(write):
    path = write(rows_of(latency=...))
    log = read_log(TraceParams(str(path)))
    assert log.measured == "time to first token"
    assert log.traffic.wait_s.tolist() == [0.5] * 6
    moved = [without(one, "ttft", "latency") | {"x": one["time"] + 0.5} for one in rows_of()]
    log = read_log(TraceParams(str(write(moved)), columns="first_token=x"))
    assert log.traffic.wait_s.tolist() == [0.5] * 6


IN_MS = (["--map", "ttft_ms=w"], ["--map", "ttft=w", "--time-unit", "ms"])


@pytest.mark.parametrize("flags", IN_MS)
def test_a_page_of_a_log_takes_columns_and_units_of_waits(write, flags, tmp_path):
    rows = [without(one, "ttft", "latency") | {"w": 750} for one in rows_of()]
    rows = [without(one, "time") | {"time_s": one["time"]} for one in rows]
    page = tmp_path / "page.md"
    done = CliRunner().invoke(app, ["report", str(write(rows)), *flags, "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert "| time to first token, P95 | 0.75 s | median 0.75 s |" in page.read_text()


def test_a_log_without_token_counts_is_diagnosed_by_its_requests(write):
    rows = [
        {"ts": 1_795_154_400 + n, "user": "abc"[n % 3], "ttft_s": 0.2, "latency_s": 3.5}
        for n in range(300)
    ]
    rows += [
        {"ts": 1_795_154_500 + n / 8, "user": "a", "ttft_s": 9.0, "latency_s": 12.0}
        for n in range(400)
    ]
    path = write(rows)
    log = read_log(TraceParams(str(path)))
    assert (log.counted, len(log.traffic.client)) == (False, 700)
    done = CliRunner().invoke(app, ["diagnose", str(path), "--disable-tqdm"])
    text = " ".join(done.stdout.split())
    assert (done.exit_code, text.startswith("a floods")) == (0, True)
    assert "requests were in progress at once" in text
    assert "The log has no token counts" in text
    found = json.loads(CliRunner().invoke(app, ["diagnose", str(path), "--json"]).stdout)
    assert (found["schedulers"], found["plan"], found["floods"][0]["client"]) == ([], None, "a")


SAMPLES = {
    "request_id": ["cmpl-1", "cmpl-2"],
    "request_idx": [0, 1],
    "finish_reason": ["stop", "stop"],
    "requested_time": ["2026-11-20T06:00:00Z"],
    "usage.promt_tokens": [12, 13],
    "completion_cost": [0.25, 0.5],
    "endpoint": ["/v1/chat"],
}


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        *(("start", "requested_time"), ("input_tokens", "usage.promt_tokens")),
        *(("output_tokens", ""), ("end", ""), ("session", "")),
    ],
)
def test_hints_name_only_columns_that_can_be_right(field, hint):
    assert nearest(field, SAMPLES, ()) == hint


def test_keys_with_dots_and_nested_keys_are_named_alike(write):
    nested = [without(one, "client") | {"who": {"id.x": {"name": "n"}}} for one in rows_of()]
    dotted = [without(one, "client") | {"who.id.x.name": "n"} for one in rows_of()]
    text = [without(one, "client") | {"who": '{"id.x": {"name": "n"}}'} for one in rows_of()]
    for rows in (nested, dotted, text):
        path = write(rows)
        columns = "client=who.id.x.name"
        assert read_trace(TraceParams(str(path), columns=columns)).trace.clients == ("n",)
        assert read_scored([path], names={"client": "who.id.x.name"}).clients == ("n",)


def test_fields_have_units_and_synonyms_in_every_command(write):
    rows = [{"k": "a", "at": 5000 * n, "f": 250, "l": 2500, "i": 9, "o": 5} for n in range(4)]
    names = "client=k,time_ms=at,ttft_ms=f,latency_ms=l,input_tokens=i,output_tokens=o"
    path = write(rows)
    found = read_trace(TraceParams(str(path), columns=names)).trace.table(0)
    assert found.arrival_s.tolist() == [0, 5, 10, 15]
    scored = read_scored([path], names=parse_map(names.replace("time", "start").split(",")))
    assert scored.requests.arrival_s.tolist() == [0, 5, 10, 15]
    np.testing.assert_allclose(scored.last_token_s, found.end_s)


@pytest.mark.parametrize("name", ["Request Tokens", "request_tokens", "REQUEST-TOKENS", "x" * 999])
def test_plain_names(name):
    assert plain(name) == ("requesttokens" if len(name) < 200 else "")


def test_times_of_day_may_have_decimal_commas(write):
    lines = "".join(f"{1_795_154_400 + n},250;a;0,5;2,5;100;50\n" for n in range(3))
    scored, table = both(write(SEMICOLONS + lines, "log.csv"))
    assert table.arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert scored.last_token_s.tolist() == pytest.approx([2.5, 3.5, 4.5])


@pytest.mark.parametrize(
    ("word", "failed"),
    [("OK", 0), ("UNSET", 0), ("STATUS_CODE_ERROR", 1), (2, 1), (1, 0), ("ERROR", 1)],
)
def test_states_of_opentelemetry_are_read(write, word, failed):
    rows = rows_of(status=lambda n: word if n == 1 else "OK")
    scored = read_scored([write(rows)])
    assert (scored.failed, scored.remarks) == (failed, ())


def test_times_are_rounded_to_the_nearest_nanosecond(write):
    _, table = both(write(rows_of(time=lambda n: 0.29 * n)))
    assert table.arrival_s.tolist() == [0.0, 0.29, 0.58, 0.87, 1.16, 1.45]


@pytest.mark.parametrize("outputs", [(1, 50, 3), (50, 3, 4), (3, 4, 50)])
def test_the_largest_output_among_the_lines_of_a_request_is_kept(write, outputs):
    row = rows_of(request_id="r")[0]
    scored, table = both(write([row | {"output_tokens": one} for one in outputs]))
    assert scored.requests.output_tokens.tolist() == [50]
    assert table.output_tokens.tolist() == [50]


@pytest.mark.parametrize(("total", "output"), [(160, 60), (150, 50), (155, 50)])
def test_reasoning_tokens_are_added_only_if_the_total_counts_them_separately(write, total, output):
    """Each row has 100 input tokens, 50 output tokens and 10 reasoning tokens."""
    path = write(rows_of(reasoning_tokens=10, total_tokens=total))
    scored, table = both(path)
    assert set(scored.requests.output_tokens.tolist()) == {output}
    assert set(table.output_tokens.tolist()) == {output}
