"""Test that every command finds the same requests in a log, whatever tool wrote it."""

import csv
import gzip
import json
import random

import pytest

from fairbench.workloads.traces import FORMATS
from fairbench.workloads.traces.read import TraceParams, read_trace
from fairbench_logs.diagnosis.access_log import read_log
from fairbench_logs.records.known_formats import NAMES as LAYOUT_NAMES
from fairbench_logs.scoring.records import read_scored
from tests.shared_data import SHARED

START_S = 1_795_154_400  # 2026-11-20 06:00:00 UTC
COUNT, TOKENS, OUTPUT = 12, 300, 40


def iso(at_s, zone="Z", space="T"):
    """Return the time ``at_s`` seconds after the start, as ISO 8601."""
    whole, part = divmod(round(at_s * 1000), 1000)
    minutes, seconds = divmod(whole, 60)
    return f"2026-11-20{space}06:{minutes:02d}:{seconds:02d}.{part:03d}{zone}"


def requests():
    """Yield twelve requests: number, start, client, prompt and answer. An answer takes 2 s."""
    for n in range(COUNT):
        yield n, 5.0 * n, ("ann", "bob", "cy")[n % 3], TOKENS + n, OUTPUT


def litellm(n, at_s, client, read, written):
    row = {"request_id": f"r{n}", "call_type": "acompletion", "cache_hit": "False"}
    row |= {"startTime": iso(at_s, "", " "), "endTime": iso(at_s + 2, "", " ")}
    row |= {"completionStartTime": iso(at_s + 0.5, "", " "), "user": "default_user_id"}
    return row | {"prompt_tokens": read, "completion_tokens": written, "end_user": client}


def langfuse(n, at_s, client, read, written):
    trace = {"traceId": f"t{n}", "id": f"s{n}", "type": "SPAN", "startTime": iso(at_s)}
    trace |= {"endTime": iso(at_s + 2), "userId": client, "usageDetails": {}}
    usage = {"input": read, "output": written, "total": read + written}
    call = trace | {"id": f"g{n}", "type": "GENERATION", "usageDetails": usage}
    return [call | {"parentObservationId": f"s{n}", "completionStartTime": iso(at_s + 0.5)}, trace]


def langsmith(n, at_s, client, read, written):
    meta = {"metadata": {"user_id": client}}
    chain = {"id": f"c{n}", "run_type": "chain", "start_time": iso(at_s), "session_id": "project"}
    chain |= {"end_time": iso(at_s + 2.5), "prompt_tokens": read, "completion_tokens": written}
    chain |= {"parent_run_id": None, "trace_id": f"c{n}", "extra": meta, "status": "success"}
    call = chain | {"id": f"l{n}", "run_type": "llm", "parent_run_id": f"c{n}"}
    return [chain, call | {"end_time": iso(at_s + 2), "first_token_time": iso(at_s + 0.5)}]


def otel(n, at_s, client, read, written):
    def span(number, operation, end_s, parent=""):
        usage = {"gen_ai.operation.name": operation, "user.id": client}
        usage |= {"gen_ai.usage.input_tokens": read, "gen_ai.usage.output_tokens": written}
        made = {"spanId": f"{n}-{number}", "parentSpanId": parent, "attributes": usage}
        made |= {"startTimeUnixNano": str(round((START_S + at_s) * 1e9))}
        return made | {"endTimeUnixNano": str(round((START_S + end_s) * 1e9))}

    return [span(1, "invoke_agent", at_s + 3), span(2, "chat", at_s + 2, f"{n}-1")]


def openinference(n, at_s, client, read, written):
    row = {"name": "call", "context.span_id": f"s{n}", "parent_id": None, "status_code": "OK"}
    row |= {"start_time": iso(at_s), "end_time": iso(at_s + 2), "span_kind": "LLM"}
    row |= {"attributes.openinference.span.kind": "LLM", "attributes.user.id": client}
    row |= {"attributes.llm.token_count.prompt": read}
    return row | {"attributes.llm.token_count.completion": written}


def helicone(n, at_s, client, read, written):
    row = {"request_id": f"h{n}", "request_created_at": iso(at_s), "request_user_id": client}
    row |= {"response_created_at": iso(at_s + 2), "delay_ms": 2000, "time_to_first_token": 500}
    return row | {"response_status": 200, "prompt_tokens": read, "completion_tokens": written}


def openrouter(n, at_s, client, read, written):
    row = {"generation_id": f"gen-{n}", "created_at": iso(at_s), "external_user": client}
    row |= {"native_tokens_prompt": read, "native_tokens_completion": written}
    return row | {"tokens_prompt": 1, "tokens_completion": 1, "generation_time": 2000}


def cloudflare(n, at_s, client, read, written):
    row = {"id": f"c{n}", "created_at": iso(at_s), "duration": 2000, "cached": False}
    row |= {"tokens_in": read, "tokens_out": written, "success": True}
    row |= {"metadata": {"user": client}}
    return [row, row | {"id": f"again{n}", "cached": True, "duration": 3}]


def nginx(n, at_s, client, read, written):
    row = {"time_iso8601": iso(at_s + 2, "+00:00"), "request_time": "2.000", "status": "200"}
    row |= {"remote_addr": "192.0.2.1", "remote_user": client}
    return row | {"prompt_tokens": read, "completion_tokens": written}


def caddy(n, at_s, client, read, written):
    row = {"logger": "http.log.access.log0", "ts": START_S + at_s + 2, "duration": 2.0}
    row |= {"status": 200, "user_id": client, "request": {"remote_ip": "192.0.2.1"}}
    return row | {"prompt_tokens": read, "completion_tokens": written}


def envoy(n, at_s, client, read, written):
    row = {"start_time": iso(at_s), "duration": 2000, "response_code": 200, "user": client}
    return row | {"input_tokens": read, "output_tokens": written, "response_flags": "-"}


def agentgateway(n, at_s, client, read, written):
    row = {"time": iso(at_s + 2), "scope": "request", "duration": "2000ms", "jwt.sub": client}
    row |= {"http.status": 200, "gen_ai.operation.name": "chat"}
    return row | {"gen_ai.usage.input_tokens": read, "gen_ai.usage.output_tokens": written}


def bedrock(n, at_s, client, read, written):
    row = {"timestamp": iso(at_s), "requestId": f"b{n}", "modelId": "m"}
    row |= {"requestMetadata": {"user": client}, "output": {"outputTokenCount": written}}
    return row | {"input": {"inputTokenCount": read - 200, "cacheReadInputTokenCount": 200}}


def transcript(n, at_s, client, read, written):
    usage = {"input_tokens": read - 200, "cache_read_input_tokens": 200}
    line = {"type": "assistant", "timestamp": iso(at_s), "sessionId": f"s{n}", "userId": client}
    blocks = [(at_s, 1), (at_s + 1, written)]
    made = [
        line
        | {"timestamp": iso(when), "requestId": f"req_{n}"}
        | {"message": {"id": f"msg_{n}", "usage": usage | {"output_tokens": output}}}
        for when, output in blocks
    ]
    return [*made, line | {"type": "user", "message": {"role": "user", "content": "go on"}}]


def vllm_log(n, at_s, client, read, written):
    times = {"arrival_time": START_S + at_s, "first_token_time": START_S + at_s + 0.5}
    times |= {"finished_time": START_S + at_s + 2}
    usage = {"prompt_tokens": read, "completion_tokens": written}
    return {"request_id": f"cmpl-{n}", "user": client, "metrics": times, "usage": usage}


def vidur(n, at_s, client, read, written):
    row = {"Request Id": n, "request_e2e_time": 2.0, "prefill_e2e_time": 0.5, "client": client}
    row |= {"request_inter_arrival_delay": 5.0 if n else 0.0}
    return row | {"request_num_prefill_tokens": read, "request_num_decode_tokens": written}


def wildchat(n, at_s, client, read, written):
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    row = {"conversation_hash": f"h{n}", "conversation": turns, "timestamp": iso(at_s)}
    return row | {"hashed_ip": client, "prompt_tokens": read, "completion_tokens": written}


def access(n, at_s, client, read, written):
    row = {"ts": round((START_S + at_s) * 1000), "tenant": client, "latencyMs": 2000}
    return row | {"promptTokens": read, "completionTokens": written, "ttftMs": 500}


def nested(n, at_s, client, read, written):
    usage = {"usage": {"input_tokens": read, "output_tokens": written}}
    row = {"ts": iso(at_s), "user": {"id": client, "plan": "pro"}, "duration": "2.0s"}
    return row | {"gen_ai": usage, "http": {"status": 200}}


def apache(n, at_s, client, read, written):
    minutes, seconds = divmod(round(at_s), 60)
    row = {"time": f"20/Nov/2026:06:{minutes:02d}:{seconds:02d} +0000", "username": client}
    return row | {"tokens_in": read, "tokens_out": written, "elapsed": "0:00:02"}


WRITERS = {
    one.__name__: one
    for one in (
        *(litellm, langfuse, langsmith, otel, openinference, helicone, openrouter, cloudflare),
        *(
            nginx,
            caddy,
            envoy,
            agentgateway,
            bedrock,
            transcript,
            vllm_log,
            vidur,
            wildchat,
            access,
        ),
        *(apache, nested),
    )
}


def records_of(name):
    found = [WRITERS[name](*one) for one in requests()]
    return [row for one in found for row in (one if isinstance(one, list) else [one])]


def as_cell(value):
    return json.dumps(value) if isinstance(value, dict | list) else value


def write(path, rows):
    if path.suffix == ".csv":
        names = list(dict.fromkeys(name for row in rows for name in row))
        texts = [{name: as_cell(one) for name, one in row.items()} for row in rows]
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, names)
            table.writeheader()
            table.writerows(texts)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def check(path, name):
    """Check that ``trace``, ``diagnose`` and ``score`` find the twelve requests."""
    read = read_trace(TraceParams(str(path)))
    table = read.trace.table(0)
    found = (len(table), table.clients, int(table.input_tokens.sum()), table.output_tokens.sum())
    expected = sum(one[3] for one in requests())
    assert found == (COUNT, ("ann", "bob", "cy"), expected, COUNT * OUTPUT)
    assert table.span_s == pytest.approx(5.0 * (COUNT - 1))
    if name not in ("transcript", "wildchat", "bedrock"):
        assert (table.end_s - table.arrival_s).tolist() == pytest.approx([2.0] * COUNT, abs=1e-6)
    log = read_log(TraceParams(str(path)))
    assert (len(log.traffic.client), sorted(log.traffic.clients)) == (COUNT, ["ann", "bob", "cy"])
    assert log.traffic.tokens.sum() == expected + 2 * COUNT * OUTPUT
    assert log.traffic.span_s == pytest.approx(5.0 * (COUNT - 1))
    timed = name in ("litellm", "langfuse", "langsmith", "helicone", "vllm_log", "vidur", "access")
    assert (log.measured == "time to first token") is timed
    if not timed:
        return
    scored = read_scored([path])
    assert (len(scored.requests.client), sorted(scored.clients)) == (COUNT, ["ann", "bob", "cy"])
    assert scored.requests.input_tokens.sum() == expected
    waits = scored.requests.first_token_s - scored.requests.arrival_s
    assert waits.tolist() == pytest.approx([0.5] * COUNT, abs=1e-6)
    assert (scored.last_token_s - scored.requests.arrival_s).tolist() == pytest.approx(
        [2.0] * COUNT, abs=1e-6
    )
    assert scored.failed == 0


@pytest.mark.parametrize("name", WRITERS)
def test_all_commands_find_the_same_requests(name, tmp_path):
    check(write(tmp_path / "log.jsonl", records_of(name)), name)


@pytest.mark.parametrize("kind", ["event", "embedding"])
@pytest.mark.parametrize(("name", "key"), [("langfuse", "type"), ("langsmith", "run_type")])
def test_spans_of_other_kinds_without_tokens_are_no_requests(name, key, kind, tmp_path):
    counts = ("usageDetails", "prompt_tokens", "completion_tokens")
    rows = []
    for row in records_of(name):
        other = {key: kind.upper() if name == "langfuse" else kind, "id": f"{row['id']}-other"}
        rows += [row, {one: row[one] for one in row if one not in counts} | other]
    check(write(tmp_path / "log.jsonl", rows), name)


@pytest.mark.parametrize("name", sorted(set(WRITERS) - {"vidur"}))
def test_the_order_of_records_and_keys_does_not_matter(name, tmp_path):
    rng = random.Random(7)
    rows = records_of(name)
    rng.shuffle(rows)
    rows = [dict(rng.sample(list(row.items()), len(row))) for row in rows]
    check(write(tmp_path / "log.jsonl", rows), name)


@pytest.mark.parametrize("name", WRITERS)
def test_a_table_of_csv_has_the_same_requests(name, tmp_path):
    check(write(tmp_path / "log.csv", records_of(name)), name)


@pytest.mark.parametrize("name", ["langfuse", "openinference", "vllm_log", "cloudflare"])
def test_a_list_of_json_and_a_gzip_file_have_the_same_requests(name, tmp_path):
    (tmp_path / "log.json").write_text(json.dumps(records_of(name)))
    check(tmp_path / "log.json", name)
    text = "".join(json.dumps(row) + "\n" for row in records_of(name))
    (tmp_path / "log.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    check(tmp_path / "log.jsonl.gz", name)


RIGHT = {  # requests, clients, input tokens, span (s), programs
    "otel_agent_spans.jsonl": (20, 2, 13_000, 185.0, 10),
    "anthropic_messages.jsonl": (40, 2, 340_480, 117.0, 40),
    "nginx_access.jsonl": (30, 2, 15_435, 108.75, 30),
    "envoy_access.jsonl": (24, 2, 16_800, 115.0, 6),
    "helicone_requests.jsonl": (20, 2, 16_000, 122.5, 4),
    "decimal_comma.csv": (40, 2, 12_780, 78.0, 40),
    "langfuse_observations.jsonl": (30, 2, 9_435, 116.0, 10),
    "openinference_spans.jsonl": (20, 2, 8_190, 57.0, 4),
    "litellm_spend.csv.gz": (2_508, 12, 3_351_562, 1196.0, 2_508),
    "vllm_nested.jsonl.gz": (2_508, 12, 3_351_562, 1196.0, 2_508),
}


@pytest.mark.parametrize("name", RIGHT)
def test_field_inputs_are_read_alike(name):
    path = SHARED / "data" / "field2" / name
    if not path.exists():
        pytest.skip(f"{path}, an example that is not shipped, is missing")
    count, clients, tokens, span_s, programs = RIGHT[name]
    trace = read_trace(TraceParams(str(path))).trace
    table = trace.table(0)
    assert (len(table), len(table.clients), table.input_tokens.sum()) == (count, clients, tokens)
    assert table.span_s == pytest.approx(span_s, rel=0.01)
    found = sum(trace.count_programs(client, 1e9) for client in range(clients))
    assert found == programs
    log = read_log(TraceParams(str(path)))
    assert (len(log.traffic.client), len(log.traffic.clients)) == (count, clients)
    assert log.traffic.span_s == pytest.approx(span_s, rel=0.01)


def test_names_of_layouts_are_those_of_the_flags():
    renamed = {"lines": "csv", "vtc-columns": "vtc"}
    assert {renamed.get(one, one) for one in LAYOUT_NAMES} | {"jsonl", "weka", "servegen"} == set(
        FORMATS
    )


@pytest.mark.parametrize("name", ["langfuse", "openrouter", "cloudflare", "access"])
@pytest.mark.parametrize("key", ["data", "items", "results"])
@pytest.mark.parametrize("indent", [1, None])
def test_the_answer_of_an_api_holds_its_records(name, key, indent, tmp_path):
    answer = {"meta": {"page": 1}, key: records_of(name)}
    (tmp_path / "log.json").write_text(json.dumps(answer, indent=indent))
    check(tmp_path / "log.json", name)


@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("langfuse", {"level": "ERROR", "usageDetails": {}, "completionStartTime": None}),
        ("langsmith", {"status": "error", "completion_tokens": None, "first_token_time": None}),
        ("helicone", {"response_status": 500, "completion_tokens": 0, "time_to_first_token": None}),
        ("litellm", {"status": "failure", "completion_tokens": 0, "completionStartTime": ""}),
    ],
)
def test_a_failed_call_is_one_failed_request_in_every_command(name, failure, tmp_path):
    rows = [dict(row) for row in records_of(name)]
    calls = [row for row in rows if row.get("type", row.get("run_type", "llm")) != "SPAN"]
    calls = [row for row in calls if row.get("run_type") != "chain"]
    calls[4].update(failure)
    path = write(tmp_path / "log.jsonl", rows)
    scored = read_scored([path])
    assert (len(scored.requests.client), scored.failed) == (COUNT, 1)
    read = read_trace(TraceParams(str(path)))
    assert (len(read.trace.table(0)), read.trace.left_out) == (COUNT - 1, 1)
    assert len(read_log(TraceParams(str(path))).traffic.client) == COUNT
