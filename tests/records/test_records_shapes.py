"""Test exports in the shapes that their tools write."""

import csv
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairbench.errors import DataError
from fairbench.files.times import number_of
from fairbench.workloads.traces.read import TraceParams, read_trace
from fairbench_logs.diagnosis.access_log import read_log
from fairbench_logs.records.cells import duration_s, without_points
from fairbench_logs.records.column_names import nearest, split_unit
from fairbench_logs.scoring.records import read_scored

COUNT, START_S = 8, 1_795_154_400  # 2026-11-20 06:00:00 UTC
CLIENTS = ["ann", "bob"] * 4
READ = [300 + n for n in range(COUNT)]


def iso(at_s, zone="Z"):
    return np.datetime64(START_S * 1000 + round(at_s * 1000), "ms").astype(str) + zone


def rows_of(make):
    """Return eight requests, 5 s apart. Each has 40 tokens from 0.5 s on, and takes 2 s."""
    return [make(n, 5.0 * n, CLIENTS[n], READ[n]) for n in range(COUNT)]


def litellm(n, at_s, client, read):
    row = {"request_id": f"r{n}", "call_type": "acompletion", "prompt_tokens": read}
    row |= {"completion_tokens": 40, "startTime": iso(at_s), "endTime": iso(at_s + 2)}
    row |= {"completionStartTime": iso(at_s + 0.5), "end_user": client, "cache_hit": "False"}
    return row | {"messages": {}, "response": {}, "metadata": {"status": "success"}}


def openrouter(n, at_s, client, read):
    row = {"generation_id": f"gen-{n}", "created_at": iso(at_s, ""), "tokens_prompt": read}
    row |= {"tokens_completion": 40, "tokens_reasoning": 0, "tokens_cached": 0, "user": client}
    return row | {"generation_time_ms": 2000, "time_to_first_token_ms": 500, "streamed": True}


def helicone(n, at_s, client, read):
    row = {"request_id": f"q{n}", "request_created_at": iso(at_s), "request_user_id": client}
    row |= {"response_created_at": iso(at_s + 2), "delay_ms": 2000, "time_to_first_token": 500}
    row |= {"response_status": 200, "prompt_tokens": read, "completion_tokens": 40}
    nobody = "00000000-0000-0000-0000-000000000000"
    return row | {"cache_reference_id": nobody, "cache_enabled": True}


def langfuse(n, at_s, client, read):
    usage = {"input": read, "output": 30, "output_reasoning_tokens": 10, "total": read + 40}
    call = {"id": f"g{n}", "traceId": f"t{n}", "type": "GENERATION", "startTime": iso(at_s)}
    call |= {"endTime": iso(at_s + 2), "completionStartTime": iso(at_s + 0.5)}
    span = {"id": f"s{n}", "traceId": f"t{n}", "type": "SPAN", "startTime": iso(at_s)}
    calls = [span, call | {"parentObservationId": f"s{n}", "usageDetails": usage}]
    trace = {"id": f"t{n}", "timestamp": iso(at_s), "userId": client, "sessionId": "s"}
    return trace | {"latency": 2.0, "observations": calls}


def gemini(n, at_s, client, read):
    usage = {"promptTokenCount": read, "candidatesTokenCount": 30, "thoughtsTokenCount": 10}
    row = {"time": START_S + at_s, "client": client, "ttft": 0.5, "latency": 2.0}
    return row | {"usageMetadata": usage | {"totalTokenCount": read + 40}}


def dotted(n, at_s, client, read):
    row = {"time": iso(at_s), "x-user-id": client, "ttft": "0.5s", "latency": "2.0s"}
    return row | {"gen_ai.usage.input_tokens": read, "gen_ai.usage.output_tokens": 40}


def pandas_csv(n, at_s, client, read):
    row = {"time": iso(at_s, ""), "client": client, "input_tokens": float(read)}
    lengths = {"ttft": "0 days 00:00:00.500000", "latency": "0 days 00:00:02"}
    return row | {"output_tokens": 40.0} | lengths


WRITERS = (litellm, openrouter, helicone, langfuse, gemini, dotted, pandas_csv)


def check(path, *, timed=True):
    """Check that every command finds the eight requests."""
    table = read_trace(TraceParams(str(path))).trace.table(0)
    assert (len(table), table.clients) == (COUNT, ("ann", "bob"))
    assert (int(table.input_tokens.sum()), int(table.output_tokens.sum())) == (sum(READ), 320)
    assert table.span_s == pytest.approx(35.0)
    assert (table.end_s - table.arrival_s).tolist() == pytest.approx([2.0] * COUNT, abs=1e-6)
    assert read_log(TraceParams(str(path))).traffic.tokens.sum() == sum(READ) + 640
    if timed:
        scored = read_scored([path])
        waits = scored.requests.first_token_s - scored.requests.arrival_s
        assert waits.tolist() == pytest.approx([0.5] * COUNT, abs=1e-6)
        assert (scored.requests.input_tokens.sum(), scored.failed) == (sum(READ), 0)


def write(path, rows):
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            cells = (
                {key: json.dumps(one) if isinstance(one, dict) else one for key, one in row.items()}
                for row in rows
            )
            table.writerows(cells)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# Langfuse's lists of observations are not written as CSV.
WRITTEN = [
    (make, ending)
    for make in WRITERS
    for ending in (".jsonl", ".csv")
    if (make, ending) != (langfuse, ".csv")
]


@pytest.mark.parametrize(("make", "ending"), WRITTEN)
def test_an_export_is_read_as_its_tool_writes_it(make, ending, tmp_path):
    check(write(tmp_path / f"log{ending}", rows_of(make)))


@pytest.mark.parametrize("make", [openrouter, gemini, dotted])
def test_indented_objects_one_after_the_other_are_read(make, tmp_path):
    path = tmp_path / "log.json"
    path.write_text("".join(json.dumps(row, indent=2) + "\n" for row in rows_of(make)))
    check(path)


def test_indented_objects_are_named_by_their_first_lines(tmp_path):
    rows = rows_of(gemini)
    rows[1]["usageMetadata"]["promptTokenCount"] = "many"
    (tmp_path / "log.json").write_text("".join(json.dumps(row, indent=2) + "\n" for row in rows))
    start = 1 + len(json.dumps(rows[0], indent=2).splitlines())
    with pytest.raises(DataError, match=rf"line {start}: .*promptTokenCount = 'many'"):
        read_scored([tmp_path / "log.json"])


def test_answers_that_helicone_copied_from_its_cache_reached_no_server(tmp_path):
    rows = rows_of(helicone)
    copied = {"delay_ms": 4, "time_to_first_token": None, "response_created_at": iso(0.004)}
    rows += [rows[0] | {"request_id": "c", "cache_reference_id": "q0"} | copied]
    check(write(tmp_path / "log.jsonl", rows))


def test_vidur_writes_requests_in_the_order_of_their_ends(tmp_path):
    def make(n, at_s, client, read):
        row = {"Request Id": n, "request_e2e_time": 2.0, "prefill_e2e_time": 0.5, "client": client}
        row |= {"request_inter_arrival_delay": 5.0 if n else ""}
        return row | {"request_num_prefill_tokens": read, "request_num_decode_tokens": 40}

    check(write(tmp_path / "log.csv", rows_of(make)[::-1]))
    starts = read_scored([tmp_path / "log.csv"]).requests.arrival_s
    assert starts.tolist() == pytest.approx([5.0 * n for n in range(COUNT)])


@pytest.mark.parametrize("finest", ["msec", "time_iso8601", "time_local"])
def test_nginx_gives_the_most_precise_time(finest, tmp_path):
    def make(n, at_s, client, read):
        at_s += 2.0 + (0.25 if finest == "msec" and n % 2 else 0.0)
        clock = f"20/Nov/2026:06:00:{int(at_s):02d} +0000"
        row = {"time_local": clock, "remote_addr": "192.0.2.1", "remote_user": client}
        row |= {"time_iso8601": clock and iso(int(at_s), "+00:00"), "msec": f"{START_S + at_s:.3f}"}
        keep = ["msec", "time_iso8601", "time_local"]
        row = {k: v for k, v in row.items() if k not in keep[: keep.index(finest)]}
        row |= {"request_time": "2.000", "prompt_tokens": read, "completion_tokens": 40}
        return row | {"status": "200"}

    table = read_trace(TraceParams(str(write(tmp_path / "log.jsonl", rows_of(make))))).trace.table(
        0
    )
    step = 5.25 if finest == "msec" else 5.0
    assert table.arrival_s[1] == pytest.approx(step)
    assert (table.end_s - table.arrival_s).tolist() == pytest.approx([2.0] * COUNT, abs=1e-6)


def test_caddy_logs_a_request_at_its_end(tmp_path):
    line = {"logger": "http.log.access", "prompt_tokens": 9, "completion_tokens": 4, "status": 200}
    rows = [line | {"ts": START_S + end, "duration": took} for end, took in ((10, 1.0), (14, 3.5))]
    read = read_trace(TraceParams(str(write(tmp_path / "log.jsonl", rows))))
    table = read.trace.table(0)
    assert (read.format, table.arrival_s.tolist()) == ("caddy", [0.0, 1.5])
    assert table.end_s.tolist() == [1.0, 5.0]


def test_openinference_spans_in_otlp_and_a_session_of_two_clients(tmp_path):
    def make(n, at_s, client, read):
        found = {"openinference.span.kind": "LLM", "user.id": client, "session.id": "s"}
        found |= {"llm.token_count.prompt": read, "llm.token_count.completion": 40}
        found |= {"gen_ai.server.time_to_first_token": 0.5}
        typed = {str: "stringValue", int: "intValue", float: "doubleValue"}
        cells = [{"key": k, "value": {typed[type(v)]: v}} for k, v in found.items()]
        span = {"spanId": f"s{n}", "startTimeUnixNano": str(round((START_S + at_s) * 1e9))}
        span |= {"endTimeUnixNano": str(round((START_S + at_s + 2) * 1e9)), "attributes": cells}
        return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}

    path = write(tmp_path / "log.jsonl", rows_of(make))
    check(path)
    assert len(read_scored([path]).programs.client) == 2


PLAIN = ["time", "client", "input_tokens", "output_tokens", "ttft", "latency"]


def table_of(mark, cell=str, above=""):
    rows = [(START_S + 5 * n, CLIENTS[n], READ[n], 40, 0.5, 2.0) for n in range(COUNT)]
    lines = [mark.join(map(cell, row)) for row in rows]
    return above + "\n".join([mark.join(PLAIN), *lines]) + "\n"


def with_comma(value):
    return f"{value}".replace(".", ",")


@pytest.mark.parametrize(
    "text",
    [
        *(table_of("|"), table_of("|", with_comma), table_of(";", with_comma, "sep=;\n")),
        *(table_of(",", above="sep=,\n"), table_of("\t", with_comma, '"sep=\t"\n')),
    ],
)
def test_the_mark_between_columns_is_found(text, tmp_path):
    (tmp_path / "log.csv").write_text(text)
    check(tmp_path / "log.csv")


@pytest.mark.parametrize(
    "line",
    [
        '192.0.2.1 - ann [20/Nov/2026:06:00:02 +0000] "POST /v1 HTTP/1.1" 200 900 2.0',
        "2026-11-20T06:00:02Z,ann,300,40",
        "1795154400,ann,300,40",
        "0.25;ann;300;40",
    ],
)
def test_a_log_without_column_names_says_so(line, tmp_path):
    (tmp_path / "log.csv").write_text(f"{line}\n{line}\n")
    with pytest.raises(DataError, match=r"line 1: .*line 1 must list the column names"):
        read_trace(TraceParams(str(tmp_path / "log.csv")))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1.017", "999"], ["1017", "999"]),
        (["1.017", "2.034"], ["1017", "2034"]),
        (["1.234.567", ""], ["1234567", ""]),
        (["1.000", "2.000"], ["1.000", "2.000"]),  # whole numbers with three decimals
        (["1.000", 999.0, None], ["1000", 999.0, None]),
        (["300.0", "40"], ["300.0", "40"]),
        (["1.5", "2.034"], ["1.5", "2.034"]),
    ],
)
def test_points_that_separate_thousands(values, expected):
    assert without_points(values) == expected


def test_points_separate_thousands_in_the_whole_file_or_nowhere(tmp_path):
    counts = ["1.000"] * 17_000 + ["999", "1.017"]
    rows = [f"{n};ann;{count};40\n" for n, count in enumerate(counts)]
    path = tmp_path / "log.csv"
    path.write_text("time;client;input_tokens;output_tokens\n" + "".join(rows))
    table = read_trace(TraceParams(str(path))).trace.table(0)
    assert table.input_tokens.sum() == 17_000 * 1000 + 999 + 1017


@pytest.mark.parametrize("key", ["usage", "body", "response"])
def test_records_of_two_shapes_are_all_read(key, tmp_path):
    rows = rows_of(gemini)
    for n, row in enumerate(rows):
        row.pop("usageMetadata")
        counts = {"prompt_tokens": READ[n], "completion_tokens": 40}
        row |= counts if n % 3 else {key: counts}
    check(write(tmp_path / "log.jsonl", rows))


def test_a_diagnosis_says_which_records_were_changed(tmp_path):
    rows = rows_of(dotted)
    rows[3]["ttft"] = None
    log = read_log(TraceParams(str(write(tmp_path / "log.jsonl", rows))))
    assert log.notes == [
        "The log holds 1 request that ended without a time of the first token, and counts as "
        "answered in one piece."
    ]


@pytest.mark.parametrize("ending", ["", "\n"])
def test_lines_of_a_container_are_unwrapped(ending, tmp_path):
    rows = rows_of(dotted)
    lines = [{"log": json.dumps(row) + ending, "stream": "stdout", "time": iso(90)} for row in rows]
    check(write(tmp_path / "log.jsonl", lines))


@pytest.mark.parametrize("mark", [" ", "'", "’", "\u00a0", "\u202f"])
def test_spaces_and_apostrophes_separate_thousands(mark):
    assert number_of(f"1{mark}017") == 1017
    assert number_of(f"12{mark}345{mark}678") == 12_345_678
    assert number_of(f"1{mark}17") is None
    assert number_of(f"1{mark}017,5") is None


def test_types_of_parquet_are_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "time": [START_S + 5 * n for n in range(COUNT)],
        "client": CLIENTS,
        "input_tokens": [Decimal(one) for one in READ],
        "output_tokens": [Decimal("40.00")] * COUNT,
        "ttft": [timedelta(milliseconds=500)] * COUNT,
        "latency": [Decimal("2.000")] * COUNT,
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "log.parquet")
    check(tmp_path / "log.parquet")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(("latency_minutes", ("latency", "min")), ("timeHours", ("time", "h"))),
        *(("latency_min", ("latency_min", None)), ("startHour", ("start", "h"))),
    ],
)
def test_minutes_and_hours_in_names(name, expected):
    assert split_unit(name) == expected
    assert nearest("latency", {"latency_min": [1.5], "latency_p99": [2.5]}, ()) == ""


@pytest.mark.parametrize("date", ["2026-11-20", "2026-11-20 ", "2026-W47-5"])
def test_dates_without_a_time_of_day_are_no_arrivals(date, tmp_path):
    rows = [row | {"date": date} for row in rows_of(gemini)]
    for row in rows:
        del row["time"]
    path = write(tmp_path / "log.jsonl", rows)
    for read in (lambda: read_scored([path]), lambda: read_trace(TraceParams(str(path)))):
        with pytest.raises(DataError, match="must have a time of day"):
            read()


@pytest.mark.parametrize("name", ["num_model_requests", "request_count", "totalRequests"])
def test_sums_of_several_requests_are_no_requests(name, tmp_path):
    rows = [row | {name: n} for n, row in enumerate(rows_of(gemini))]
    with pytest.raises(DataError, match=f"{name} = 7: a row counts several requests"):
        read_log(TraceParams(str(write(tmp_path / "log.jsonl", rows))))
    check(write(tmp_path / "log.jsonl", [row | {name: 1} for row in rows]))


@pytest.mark.parametrize("name", ["time", "request_time", "reqTime"])
@pytest.mark.parametrize("zone", ["Z", None])
def test_durations_beside_dates_are_no_arrivals(name, zone, tmp_path):
    rows = rows_of(gemini)
    for n, row in enumerate(rows):
        del row["time"]
        row |= {name: 2.0 + n % 2, "created": START_S + 5 * n if zone is None else iso(5.0 * n)}
    check(write(tmp_path / "log.jsonl", rows))


def test_times_beside_one_date_are_arrivals(tmp_path):
    rows = [
        row | {"time": 5.0 * n, "created": "2026-11-20"} for n, row in enumerate(rows_of(gemini))
    ]
    check(write(tmp_path / "log.jsonl", rows))


def test_days_before_a_time_of_day():
    assert duration_s("0 days 00:00:02.250000") == 2.25
    assert duration_s("1 day 00:00:01") == 86_401.0


@pytest.mark.parametrize("total", [True, False])
def test_more_cached_tokens_than_input_stand_beside_it(total, tmp_path):
    def make(n, at_s, client, read):
        row = helicone(n, at_s, client, read) | {"prompt_tokens": read - 290}
        row |= {"prompt_cache_read_tokens": 250, "prompt_cache_write_tokens": 40}
        return row | ({"total_tokens": read - 250} if total else {})

    check(write(tmp_path / "log.jsonl", rows_of(make)))


def test_values_of_parquet_at_any_depth_are_read_like_json(tmp_path):
    """A timestamp, duration, decimal or binary text may stand in a struct or a dictionary."""
    at = [datetime.fromtimestamp(START_S + 5 * n, UTC).replace(tzinfo=None) for n in range(COUNT)]
    timing = [{"start": one, "took": timedelta(seconds=2), "tokens": [Decimal(40)]} for one in at]
    columns = {
        "timing": pa.array(timing),
        "client": pa.array([one.encode() for one in CLIENTS]).dictionary_encode(),
        "input_tokens": pa.array(READ),
        "output_tokens": pa.array([Decimal(40)] * COUNT),
    }
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    names = "start=timing.start,latency=timing.took"
    read = read_trace(TraceParams(str(tmp_path / "log.parquet"), columns=names)).trace.table(0)
    assert read.clients == ("ann", "bob")
    assert read.arrival_s.tolist() == [5.0 * n for n in range(COUNT)]
    assert (read.end_s - read.arrival_s).tolist() == [2.0] * COUNT
    assert int(read.output_tokens.sum()) == 320


@pytest.mark.parametrize(
    ("head", "what"), [(b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zXZ\0", "xz"), (b"BZh91A", "bzip2")]
)
def test_a_file_that_another_tool_compressed_is_named(tmp_path, head, what):
    (tmp_path / "log.csv").write_bytes(head + bytes(range(256)))
    with pytest.raises(DataError, match=f"is compressed with {what}: decompress it"):
        read_scored([tmp_path / "log.csv"])


@pytest.mark.parametrize(
    "header",
    ["time;client;TTFT, ms;Latency, ms;isl;osl", 'time;"client";"a,b,c,d,e,f";latency_ms;isl;osl'],
)
def test_the_most_frequent_mark_outside_quotes_separates_columns(tmp_path, header):
    (tmp_path / "log.csv").write_text(f"{header}\n5;ann;500;2000;300;40\n")
    table = read_trace(TraceParams(str(tmp_path / "log.csv"))).trace.table(0)
    assert (table.clients, table.input_tokens.tolist()) == (("ann",), [300])
    assert (table.end_s - table.arrival_s).tolist() == [2.0]


def test_quotes_after_a_blank_are_no_part_of_a_name(tmp_path):
    (tmp_path / "log.csv").write_text('time, client, isl, osl\n5, "ann, x", 300, 40\n')
    clients = read_trace(TraceParams(str(tmp_path / "log.csv"))).trace.table(0).clients
    assert clients == ("ann, x",)


@pytest.mark.parametrize("title", ["Usage report\n", "# exported, by x\n"])
def test_lines_above_the_column_names_are_named(tmp_path, title):
    (tmp_path / "log.csv").write_text(f"{title}time,client,isl,osl\n5,ann,300,40\n")
    with pytest.raises(DataError, match=r"line 2: has more cells .* remove lines above"):
        read_trace(TraceParams(str(tmp_path / "log.csv")))
