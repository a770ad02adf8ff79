"""Test logs of servers and gateways in their documented formats, on made-up records."""

import json

import pytest

from fairbench.errors import DataError
from fairbench.workloads.traces.read import TraceParams, read_trace


@pytest.fixture
def read(tmp_path):
    def read(*objects, **params):
        path = tmp_path / "log.jsonl"
        path.write_text("\n".join(map(json.dumps, objects)), encoding="utf-8")
        return read_trace(TraceParams(str(path), **params))

    return read


def rows_of(table):
    columns = (table.arrival_s, table.client, table.input_tokens, table.output_tokens)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_a_benchmark_of_vllm_is_read(read):
    run = {
        "backend": "vllm",
        "completed": 2,
        "input_lens": [10, 20, 30],
        "output_lens": [5, 0, 7],
        "ttfts": [0.1, 0.0, 0.1],
        "itls": [[0.01], [], [0.01]],
        "start_times": [1000.5, 1001.0, 1002.0],
        "generated_texts": ["a", "", "b"],
        "errors": ["", "refused", ""],
    }
    found = read(run)
    assert (found.format, found.trace.clients, found.trace.left_out) == ("vllm", ("all",), 1)
    assert rows_of(found.trace.table(0)) == [(0, 0, 10, 5), (1.5, 0, 30, 7)]


def sglang(event, at, rid, **more):
    return {"timestamp": f"2025-01-01T10:00:{at}", "event": f"request.{event}", "rid": rid, **more}


def test_a_request_log_of_sglang_is_read(read):
    obj = {"text": "x" * 200, "sampling_params": {"max_new_tokens": 64}}
    tenant = {"custom_labels": {"tenant": "acme"}}

    def out(read, written, took):
        return {
            "meta_info": {"prompt_tokens": read, "completion_tokens": written, "e2e_latency": took}
        }

    log = [
        sglang("received", "00.000000", "a", obj=obj),
        sglang("received", "00.500000", "b", obj=obj),
        sglang("finished", "01.500000", "b", obj=obj | tenant, out=out(45, 3, 1.0)),
        sglang("finished", "02.000000", "a", obj=obj, out=out(44, 9, 2.0)),
        sglang("received", "03.000000", "c", obj=obj),
    ]
    found = read(*log)
    table = found.trace.table(0)
    assert found.format == "sglang"
    assert rows_of(table) == [(0, 0, 44, 9), (0.5, 0, 45, 3)]
    assert table.end_s.tolist() == [2.0, 1.5]
    assert table.max_tokens.tolist() == [64, 64]
    assert table.blocks.tolist()[:3] == table.blocks.tolist()[3:]  # 200 characters are 3 blocks
    by_tenant = read(*log, columns="client=obj.custom_labels.tenant")
    assert by_tenant.trace.clients == ("acme", "all")


def attributes(**values):
    return [{"key": key.replace("__", "."), "value": value} for key, value in values.items()]


def span(start_s, end_s, **values):
    return {
        "name": "chat gpt",
        "startTimeUnixNano": str((1_700_000_000 + start_s) * 10**9),
        "endTimeUnixNano": str((1_700_000_000 + end_s) * 10**9),
        "attributes": attributes(**values),
    }


def usage(read, written):
    return {
        "gen_ai__usage__input_tokens": {"intValue": str(read)},
        "gen_ai__usage__output_tokens": {"intValue": written},
    }


def test_spans_of_opentelemetry_are_read(read):
    user = {"user__id": {"stringValue": "ann"}}
    chat = {"gen_ai__conversation__id": {"stringValue": "c1"}}
    spans = [
        span(0, 4, **usage(100, 10), **user, **chat),
        {"name": "GET /", "startTimeUnixNano": "1", "endTimeUnixNano": "2"},
        span(9, 11, **usage(150, 20), **user, **chat),
        span(3, 4, **usage(7, 1)),
    ]
    resource = {"attributes": attributes(service__name={"stringValue": "shop"})}
    batch = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}
    found = read(batch)
    assert (found.format, found.trace.clients) == ("otel", ("all", "ann"))
    assert rows_of(found.trace.table(0)) == [(0, 1, 100, 10), (3, 0, 7, 1), (9, 1, 150, 20)]
    ((_, program),) = found.trace.programs(1, None, 1.0)
    assert [call.think_s for call in program.calls] == [5.0, 0.0]
    by_service = read(batch, columns="client=service.name")
    assert by_service.trace.clients == ("shop",)


def test_a_file_with_one_span_per_line_is_read(read):
    one = {
        "name": "chat",
        "start_time": "2025-01-01T10:00:00.000000Z",
        "end_time": "2025-01-01T10:00:02.000000Z",
        "attributes": {"gen_ai.usage.prompt_tokens": 9, "gen_ai.usage.completion_tokens": 4}
        | {"enduser.id": "bob"},
    }
    tool = {"name": "tool", "start_time": "2025-01-01T10:00:00Z", "attributes": {}}
    found = read(one, tool)
    assert (found.format, found.trace.clients) == ("otel", ("bob",))
    assert rows_of(found.trace.table(0)) == [(0, 0, 9, 4)]
    as_otlp = read(span(3, 4, **usage(7, 1)), span(5, 6, **usage(8, 2)))
    assert (as_otlp.format, as_otlp.unit) == ("otel", "ns")
    assert rows_of(as_otlp.trace.table(0)) == [(0, 0, 7, 1), (2, 0, 8, 2)]


def test_a_missing_label_is_compared_with_those_present(read):
    tenant = {"custom_labels": {"tenant": "acme"}, "text": "x"}
    out = {"meta_info": {"prompt_tokens": 9, "completion_tokens": 3, "e2e_latency": 1.0}}
    log = [sglang("finished", "01.500000", "b", obj=tenant, out=out)]
    with pytest.raises(DataError) as error:
        read(*log, columns="client=obj.custom_labels.tennant")
    assert str(error.value).endswith(
        "log.jsonl: unknown column 'obj.custom_labels.tennant': choose from "
        "obj.custom_labels.tenant, obj.text. Did you mean 'obj.custom_labels.tenant'?"
    )
    with pytest.raises(DataError, match="choose from event, obj,") as error:
        read(*log, columns="client=tenant")
    assert "=" not in str(error.value)


def test_the_standard_payload_of_litellm_is_read(read):
    def call(start, end, **more):
        return {
            **{"id": "x", "call_type": "acompletion", "status": "success", "startTime": start},
            **{"endTime": end, "prompt_tokens": 50, "completion_tokens": 6, "cache_hit": False},
            **{"model_parameters": {"max_tokens": 99}, "end_user": "", "metadata": {}},
            **more,
        }

    found = read(
        call(1_700_000_000.5, 1_700_000_001.0, end_user="eve", trace_id="t"),
        call(1_700_000_003.0, 1_700_000_004.0, end_user="eve", trace_id="t"),
        call(1_700_000_001.0, 1_700_000_001.0, cache_hit=True),
        call(1_700_000_002.5, 1_700_000_004.0, metadata={"user_api_key_team_id": "red"}),
        call(1_700_000_002.5, 1_700_000_002.6, status="failure", completion_tokens=0),
    )
    trace = found.trace
    assert (found.format, trace.clients, trace.left_out) == ("litellm", ("eve", "red"), 2)
    assert rows_of(trace.table(0)) == [(0, 0, 50, 6), (2, 1, 50, 6), (2.5, 0, 50, 6)]
    ((_, program),) = trace.programs(0, None, 1.0)
    assert [call.think_s for call in program.calls] == [2.0, 0.0]
    assert {call.max_new_tokens for call in program.calls} == {99}


def test_the_spend_log_of_litellm_in_another_notation_is_read(read):
    row = {
        **{"call_type": "acompletion", "startTime": "2025-01-01T10:00:00", "user": "u"},
        **{"endTime": "2025-01-01T10:00:03", "prompt_tokens": "5", "completion_tokens": "2"},
    }
    found = read(row, row | {"startTime": "2025-01-01T10:00:01", "team_id": "t", "user": ""})
    assert (found.format, found.trace.clients) == ("litellm", ("t", "u"))


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        (
            sglang("finished", "00", "a", out={"meta_info": {}}),
            "no requests, but for 1 that failed",
        ),
        (
            sglang("finished", "xx", "a", out={"meta_info": {"prompt_tokens": "x"}}),
            "line 1: out.meta_info.prompt_tokens = 'x': must be a number",
        ),
        ({"resourceSpans": 3}, "no requests"),
        ({"resourceSpans": [{"scopeSpans": [{"spans": [7, {}]}]}]}, "no requests"),
        (
            {"attributes": {"gen_ai.usage.input_tokens": 1, "gen_ai.usage.output_tokens": {}}},
            "no requests, but for 1 that failed",
        ),
        (
            {"attributes": {"gen_ai.usage.input_tokens": 1, "gen_ai.usage.output_tokens": 2}},
            "line 1: time = None: must be a number or an ISO 8601 time",
        ),
    ],
)
def test_errors_are_one_line(read, record, complaint):
    with pytest.raises(DataError) as error:
        read(record)
    assert complaint in str(error.value)
