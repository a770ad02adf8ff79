"""Test the Responses API, the Messages API, pages without output, and requests for n answers."""

import asyncio
import json

import pytest
from aiohttp import web

from fairbench_load import headers
from fairbench_load.openai import MEDIA_TOKENS, StreamJudge, answered, judge, whole_fault
from fairbench_serve.answers import HighestCost, StreamReader, Usage, broken_off, usage_of
from fairbench_serve.calls import APIS, MOST_ANSWERS
from fairbench_serve.client_limits import Quota
from fairbench_serve.prompts import ApproximateTokens
from tests.serve.live_router import (
    CHAT,
    COMPLETIONS,
    GENERATE,
    MESSAGES,
    PATHS,
    RESPONSES,
    TURNS,
    TYPED,
    Worker,
    cluster,
    event_bytes,
    router_before,
    streamed,
    typed_events,
    whole,
)

API = {api.path: api for api in APIS}
COUNT, TOKENIZE, DETOKENIZE = "/v1/messages/count_tokens", "/tokenize", "/detokenize"
QUESTIONS = {
    TOKENIZE: {"model": "m", "prompt": "hello"},
    DETOKENIZE: {"model": "m", "tokens": [5, 6]},
    COUNT: {"model": "m", "messages": TURNS},
}


class Engine(Worker):
    """A worker that also answers pages that need no model."""

    def pages(self):
        asked = [web.post(path, self.told) for path in QUESTIONS]
        return [*asked, web.get("/version", self.told)]

    async def told(self, request):
        body = json.loads(await request.read() or b"null")
        self.seen.append((request.path, dict(request.headers), body))
        return web.json_response({"tokens": [1, 2]}, status=self.status)


def ask(path, body=None, *, router=None, engine=None, get=False, **sent):
    """Return the status, the answer, what the worker got, and the metrics page."""

    async def run():
        worker = Engine(**(engine or {}))
        await worker.start()
        try:
            async with router_before([worker], **(router or {})) as under_test:
                url, session = under_test.url, under_test.session
                how = session.get(url + path, headers=sent) if get else None
                async with how or session.post(url + path, json=body, headers=sent) as answer:
                    said = await answer.text()
                async with session.get(f"{url}/metrics") as page:
                    return answer.status, said, worker.seen, await page.text()
        finally:
            await worker.stop()

    return asyncio.run(run())


def read(path, fields):
    body = {**PATHS.get(path, QUESTIONS.get(path)), **fields}
    return API[path].read(json.dumps(body).encode(), ApproximateTokens())


PARTS = [
    {"instructions": "be terse"},
    {"tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}]},
    {"input": [{"role": "user", "content": [{"type": "input_text", "text": "far more words"}]}]},
    {"input": [{"type": "function_call", "name": "look", "arguments": '{"a": "thing"}'}]},
    {"input": [{"type": "function_call_output", "call_id": "c", "output": "a long result"}]},
    {"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "thus so"}]}]},
    {"reasoning": {"effort": "high"}},
    {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}},
    {"input": ["not", "a", "dict"]},
]
BLOCKS = [
    {"system": "be terse"},
    {"system": [{"type": "text", "text": "be terse"}]},
    {"tools": [{"name": "look", "input_schema": {"type": "object"}}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "far more words"}]}]},
    {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {"a": "bcd"}}]}]},
    {
        "messages": [
            {"role": "user", "content": [{"type": "tool_result", "content": "a long result"}]}
        ]
    },
    {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm hm"}]}]},
    {"thinking": {"type": "enabled", "budget_tokens": 1024}},
]


@pytest.mark.parametrize(
    ("path", "fields"), [(RESPONSES, part) for part in PARTS[:-1]] + [(MESSAGES, b) for b in BLOCKS]
)
def test_every_part_of_a_prompt_counts(path, fields):
    assert len(read(path, fields).ids) > len(read(path, {}).ids)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (RESPONSES, [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]),
        (MESSAGES, [{"type": "image", "source": {"type": "base64", "data": "AAAA"}}]),
    ],
)
def test_an_image_counts_as_in_a_chat(path, content):
    turns = [{"role": "user", "content": content}]
    name = "input" if path == RESPONSES else "messages"
    assert len(read(path, {name: turns}).ids) >= MEDIA_TOKENS


def test_the_turns_of_one_conversation_share_their_first_tokens_in_every_api():
    for path, name in ((RESPONSES, "input"), (MESSAGES, "messages"), (CHAT, "messages")):
        first = [{"role": "user", "content": "hello there"}]
        more = [*first, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "go"}]
        short, long = read(path, {name: first}).ids, read(path, {name: more}).ids
        assert long[: len(short)] == short


REFUSED = [
    (RESPONSES, {"previous_response_id": "resp_1"}, "send the earlier turns"),
    (RESPONSES, {"store": True}, "send the earlier turns"),
    (RESPONSES, {"conversation": "c"}, "send the earlier turns"),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "msg_1"}]}, "send the earlier turns"),
    (RESPONSES, {"tools": [{"type": "namespace", "tools": [{"type": "mcp"}]}]}, "worker runs"),
    (RESPONSES, {"background": True}, "nobody waits for"),
    (RESPONSES, {"tools": [{"type": "web_search_preview"}]}, "that the worker runs"),
    (RESPONSES, {"tools": [{"type": "mcp", "server_url": "http://x"}]}, "that the worker runs"),
    (RESPONSES, {"max_output_tokens": 2**31}, "max_output_tokens"),
    (RESPONSES, {"input": ["not", "a", "dict"]}, "input"),
    (RESPONSES, {"n": 2}, "'n'"),
    (
        RESPONSES,
        {"text": {"format": {"type": "json_schema", "schema": {"pattern": "(.|.)+"}}}},
        "reg",
    ),
    (RESPONSES, {"tools": [{"type": "custom", "format": {"type": "grammar"}}]}, "--allow-regex"),
    (RESPONSES, {"input": [{"type": "x", "tools": [{"pattern": "a+"}]}]}, "--allow-regex"),
    (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "worker runs"),
    (MESSAGES, {"tools": [{"name": "a", "input_schema": {"pattern": "(.|.)+"}}]}, "--allow-regex"),
    (MESSAGES, {"messages": [{"role": "system", "content": [{"type": "tool_addition"}]}]}, "block"),
    (MESSAGES, {"max_tokens": None}, "max_tokens"),
    (MESSAGES, {"max_tokens": 0}, "max_tokens"),
    (MESSAGES, {"stop_sequences": ["x" * 257]}, "stop"),
    (MESSAGES, {"top_k": 2**40}, "top_k"),
    (MESSAGES, {"output_config": {"format": {"schema": {"pattern": "a+"}}}}, "--allow-regex"),
    (CHAT, {"priority": 5}, "before those of other clients"),
    (COMPLETIONS, {"priority": -1}, "--weights"),
    (RESPONSES, {"priority": 1}, "--weights"),
    (COMPLETIONS, {"best_of": 2}, "thrown away"),
    (CHAT, {"use_beam_search": True, "n": 2}, "thrown away"),
    (CHAT, {"n": MOST_ANSWERS + 1}, "from 1 to"),
    (CHAT, {"structured_outputs": {"regex": "(.|.)+"}}, "--allow-regex"),
    (COMPLETIONS, {"structured_outputs": {"grammar": "root ::= x"}}, "--allow-regex"),
    (RESPONSES, {"structured_outputs": {"json": '{"pattern": "a+"}'}}, "--allow-regex"),
    (CHAT, {"structured_outputs": {"json": "{"}}, "structured_outputs"),
    (CHAT, {"structured_outputs": "json"}, "structured_outputs"),
    (TOKENIZE, {"chat_template": "{{ 1 }}"}, "chat_template"),
    (TOKENIZE, {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template"),
    (TOKENIZE, {"prompt": ["a", "b"]}, "prompt"),
    (DETOKENIZE, {"tokens": [2**40]}, "token ids"),
    (COUNT, {"tools": [{"type": "code_execution_20250522"}]}, "worker runs"),
]


def test_a_refusal_says_why_and_no_worker_sees_the_request():
    async def run():
        worker = Engine()
        await worker.start()
        async with router_before([worker]) as under_test:
            for path, fields, why in REFUSED:
                body = {**PATHS.get(path, QUESTIONS.get(path)), **fields}
                async with under_test.post(path, body) as answer:
                    said = await answer.text()
                    assert (answer.status, why in said) == (400, True), (path, fields, said)
        await worker.stop()
        assert worker.seen == []

    asyncio.run(run())


SERVED = [
    (CHAT, {"structured_outputs": {"choice": ["yes", "no"]}}),
    (COMPLETIONS, {"structured_outputs": {"json": {"type": "object"}, "regex": None}}),
    (RESPONSES, {"structured_outputs": {"json_object": True}}),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}),
    (CHAT, {"n": 4}),
    (MESSAGES, {"stop_sequences": ["x"], "thinking": {"type": "disabled"}}),
]


@pytest.mark.parametrize(("path", "fields"), SERVED)
def test_fair_fields_reach_the_worker(path, fields):
    status, said, seen, _ = ask(path, {**PATHS[path], **fields})
    assert status == 200, said
    assert {name: seen[0][2][name] for name in fields} == fields


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_no_priority_is_no_field(path):
    status, _, seen, _ = ask(path, {**PATHS[path], "priority": 0})
    assert (status, "priority" in seen[0][2]) == (200, False)


def test_responses_are_never_stored():
    for fields in ({}, {"store": False}, {"store": None}):
        assert ask(RESPONSES, {**PATHS[RESPONSES], **fields})[2][0][2]["store"] is False


def test_the_user_of_a_message_names_the_client():
    body = {**PATHS[MESSAGES], "metadata": {"user_id": "ann"}}
    _, _, seen, metrics = ask(MESSAGES, body)
    assert 'fairbench_requests_total{client="ann",outcome="ok"} 1.0' in metrics
    assert "metadata" not in seen[0][2]
    assert seen[0][1][headers.ROUTING_KEY] == "ann"


KEYS = {"keys": {"k-ann": "ann"}}


@pytest.mark.parametrize("path", [*PATHS, *QUESTIONS, "/version"])
def test_every_endpoint_needs_a_key_under_either_name(path):
    body, get = {**PATHS, **QUESTIONS}.get(path), path == "/version"
    for sent, expected in (
        ({}, 401),
        ({"x-api-key": "wrong"}, 401),
        ({"Authorization": "Bearer wrong", "x-api-key": "k-ann"}, 401),
        ({"x-api-key": "k-ann"}, 200),
        ({"Authorization": "Bearer k-ann"}, 200),
    ):
        status, _, seen, _ = ask(path, body, router=KEYS, get=get, **sent)
        assert (status, len(seen)) == (expected, int(expected == 200))
        assert not any("k-ann" in str(shown) for _, shown, _ in seen)


@pytest.mark.parametrize("path", QUESTIONS)
def test_a_question_without_the_model_is_answered_and_not_charged(path):
    status, said, seen, metrics = ask(path, QUESTIONS[path])
    assert (status, json.loads(said)) == (200, {"tokens": [1, 2]})
    assert seen[0][2] == QUESTIONS[path]
    assert 'outcome="ok"' not in metrics
    assert ask(path, QUESTIONS[path], engine={"status": 400})[0] == 400


def test_questions_count_as_requests_of_a_quota():
    async def run():
        worker = Engine()
        await worker.start()
        async with router_before([worker], **KEYS) as under_test:
            quotas = under_test.proxy.access.quotas
            quotas.replace_limits({"ann": Quota(requests=2)})
            sent = {"x-api-key": "k-ann"}
            statuses = []
            for _ in range(3):
                async with under_test.post(TOKENIZE, QUESTIONS[TOKENIZE], **sent) as answer:
                    statuses.append(answer.status)
        await worker.stop()
        return statuses

    assert asyncio.run(run()) == [200, 200, 429]


def test_the_version_comes_from_a_worker():
    assert json.loads(ask("/version", get=True)[1]) == {"tokens": [1, 2]}


def test_several_answers_reserve_and_cost_several_times():
    call = read(CHAT, {"n": 5, "max_tokens": 100})
    assert (call.answers, call.reserved_output) == (5, 500)
    assert read(CHAT, {"n": 2, "max_tokens": None}).reserved_output == 8_192
    asked = HighestCost(10, 10, 500, answers=5)
    assert broken_off(Usage(), asked, 2.0, 0.1).output_tokens == 100  # 20 steps of 5 answers
    assert broken_off(Usage(), asked._replace(answers=1), 2.0, 0.1).output_tokens == 20


def test_a_stream_has_finished_when_all_its_answers_have():
    reader = StreamReader(hide_usage=False, answers=3)
    for index in (0, 1, 1, 2):
        assert not reader.is_finished
        choice = {"index": index, "text": "x", "finish_reason": "stop"}
        reader.feed(b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode())
    assert reader.is_finished


USAGES = [
    ({"input_tokens": 7, "output_tokens": 3}, Usage(7, 3, None)),
    ({"input_tokens": 7, "output_tokens": 3, "cache_read_input_tokens": 32}, Usage(39, 3, 32)),
    (
        {
            **{"input_tokens": 7, "output_tokens": 3, "cache_read_input_tokens": 0},
            "cache_creation_input_tokens": 16,
        },
        Usage(23, 3, 0),
    ),
    ({"input_tokens": -7, "output_tokens": 3}, None),
    ({"input_tokens": 7, "output_tokens": "3"}, None),
]


@pytest.mark.parametrize(("told", "meant"), USAGES)
def test_usage_is_read_under_anthropics_names(told, meant):
    answer = json.dumps({**whole(MESSAGES), "usage": told}).encode()
    found = usage_of(answer)
    assert found == meant if meant else found.output_tokens == -(-len(answer) // 4)


def test_a_later_event_adds_to_the_usage_of_an_earlier_one():
    reader = StreamReader(hide_usage=False)
    for event in typed_events(MESSAGES):
        reader.feed(event_bytes(event))
    assert reader.usage() == Usage(100, 3, 32)
    assert reader.is_complete


def test_the_count_of_output_at_the_start_of_a_message_is_none():
    reader = StreamReader(hide_usage=False)
    begun, block, *words = typed_events(MESSAGES)
    begun["message"]["usage"]["output_tokens"] = 1
    reader.feed(b"".join(map(event_bytes, [begun, block, *words[:2]])))
    assert reader.usage() == Usage(100, 2, 32)


@pytest.mark.parametrize("path", TYPED)
def test_an_interrupted_stream_counts_its_output_and_ends_as_its_clients_expect(path):
    reader = StreamReader(hide_usage=False)
    events = [event for event in typed_events(path) if "two" in str(event) or "delta" in event]
    reader.feed(b"".join(map(event_bytes, events[:2])))
    assert reader.usage().output_tokens == 2
    assert not reader.is_complete
    end = reader.end_with(problem())
    assert end.startswith(b'event: error\ndata: {"type":"error","error":{')
    assert b"[DONE]" not in end


def problem():
    from http import HTTPStatus

    from fairbench_load.http_server import Problem

    return Problem(HTTPStatus.BAD_GATEWAY, "gone")


ITEM = {"type": "message", "status": "completed", "content": [{"type": "output_text", "text": ""}]}
CALL = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
GOOD = [
    whole(RESPONSES),
    {"object": "response", "status": "completed", "output": [CALL]},
    {
        **{"object": "response", "status": "incomplete", "output": []},
        "incomplete_details": {"reason": "max_output_tokens"},
    },
    whole(MESSAGES),
    {"type": "message", "content": [{"type": "tool_use", "name": "a", "input": {}}]},
    {"type": "message", "content": [], "stop_reason": "end_turn", "usage": {"output_tokens": 1}},
    {"type": "message", "content": [], "stop_reason": "max_tokens"},
]
BAD = [
    {"object": "response", "status": "failed", "output": [], "error": {"message": "out of memory"}},
    {"object": "response", "status": "cancelled", "output": []},
    {"object": "response", "status": "queued", "output": []},
    {"object": "response"},
    {"object": "response", "status": "completed", "output": [ITEM], "usage": {"output_tokens": 0}},
    {"type": "message", "content": []},
    {"type": "message", "content": [], "stop_reason": "end_turn", "usage": {"output_tokens": 0}},
    {"type": "message", "content": [{"type": "text", "text": "a"}], "stop_reason": "error"},
    {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
]


def test_whole_answers_of_both_apis_are_judged():
    assert [whole_fault(json.dumps(answer).encode()) for answer in GOOD] == [None] * len(GOOD)
    assert all(whole_fault(json.dumps(answer).encode()) for answer in BAD)


@pytest.mark.parametrize("path", TYPED)
def test_events_around_the_output_are_none(path):
    outputs = [judge(answered(json.dumps(event).encode())).output for event in typed_events(path)]
    stream = StreamJudge()
    new = [stream.judge_event(json.dumps(event).encode()).output for event in typed_events(path)]
    assert sum(new) == 3
    assert (stream.ended, stream.end_fault()) == (True, None)
    assert sum(outputs) == 3 + (path == RESPONSES)  # its last event repeats the output


FAILURES = [
    {"type": "response.failed", "response": {"status": "failed", "error": {"message": "oom"}}},
    {"type": "response.incomplete", "response": {"incomplete_details": {"reason": "odd"}}},
    {"type": "error", "message": "broken", "code": "server_error"},
    {"type": "message_delta", "delta": {"stop_reason": "error"}},
    {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
]


@pytest.mark.parametrize("event", FAILURES)
@pytest.mark.parametrize("path", TYPED)
def test_a_failure_at_the_start_is_tried_at_another_worker_and_later_is_an_error(path, event):
    async def run():
        async with cluster(1, ending=event) as (under_test, _):
            async with under_test.post(path, streamed(path)) as answer:
                data = await answer.read()
            errors = 'fairbench_requests_total{client="default",outcome="error"}'
            return answer.status, data, await under_test.metric(errors)

    status, data, errors = asyncio.run(run())
    assert (status, errors) == (200, 1)
    assert event_bytes(event) in data or b"event: error" in data
    judged = StreamJudge()
    assert judged.judge_event(json.dumps(event).encode(), event["type"]).fault


def test_the_table_of_endpoints_names_each_path_once():
    assert len(API) == len(APIS)
    assert {path for path, api in API.items() if api.generates} == {*PATHS, GENERATE}
    assert {path for path, api in API.items() if not api.generates} == {*QUESTIONS}
