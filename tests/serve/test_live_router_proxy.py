"""Test requests through the router: forwarding, answers and metrics."""

import asyncio
import json

import pytest

from fairbench_load import headers
from tests.serve.live_router import (
    CHAT,
    COMPLETIONS,
    GENERATE,
    PATHS,
    WORDS,
    cluster,
    events,
    payloads,
    streamed,
    whole,
)

OPENAI = (COMPLETIONS, CHAT)


def ask(path, body=None, *, router=None, **sent):
    """Send a request. Return status, headers, body, what the worker got, and the metrics page."""

    async def run():
        async with cluster(1, router=router) as (under_test, (worker,)):
            async with under_test.post(path, body, **sent) as answer:
                data = await answer.read()
            async with under_test.session.get(f"{under_test.url}/metrics") as scraped:
                metrics = await scraped.text()
            return answer.status, answer.headers, data, worker.seen, metrics

    return asyncio.run(run())


@pytest.mark.parametrize("path", PATHS)
def test_an_answer_is_returned_as_the_worker_gave_it(path):
    status, returned, data, seen, _ = ask(path)
    assert (status, json.loads(data)) == (200, whole(path))
    assert returned[headers.WORKER] == "0"
    assert seen[0][0] == path


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_is_returned_as_the_worker_gave_it(path):
    status, returned, data, _, _ = ask(path, streamed(path))
    assert status == 200
    assert returned["Content-Type"] == "text/event-stream"
    # The client did not ask for the usage, but the router asks for it.
    assert payloads(data) == list(events(path, {}))


@pytest.mark.parametrize("path", OPENAI)
def test_usage_is_forwarded_to_clients_that_asked(path):
    body = {**streamed(path), "stream_options": {"include_usage": True}}
    assert payloads(ask(path, body)[2]) == list(events(path, body))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_tokens_and_service_are_counted_for_the_client(path, stream):
    body = {**PATHS[path], "stream": stream}
    metrics = ask(path, body, **{headers.CLIENT: "ann"})[4]
    assert 'fairbench_requests_total{client="ann",outcome="ok"} 1.0' in metrics
    assert 'fairbench_input_tokens_total{client="ann"} 100.0' in metrics
    assert 'fairbench_cached_tokens_total{client="ann"} 32.0' in metrics
    assert f'fairbench_output_tokens_total{{client="ann"}} {len(WORDS)}.0' in metrics
    assert f'fairbench_service_total{{client="ann"}} {100 + 2 * len(WORDS)}.0' in metrics


def test_a_generate_body_gets_the_client_and_is_otherwise_unchanged():
    _, _, _, seen, _ = ask(GENERATE, streamed(GENERATE), **{headers.CLIENT: "ann"})
    _, sent, body = seen[0]
    assert body == {**streamed(GENERATE), "routing_key": "ann"}
    assert sent[headers.ROUTING_KEY] == "ann"


@pytest.mark.parametrize("path", OPENAI)
def test_an_openai_call_gets_the_client_in_a_header_and_is_otherwise_unchanged(path):
    _, sent, body = ask(path, **{headers.CLIENT: "ann"})[3][0]
    assert (sent[headers.ROUTING_KEY], body) == ("ann", PATHS[path])


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"other": 1}])
def test_existing_fields_of_a_body_are_not_repeated(options):
    body = {**streamed(COMPLETIONS), "stream_options": options}
    status, _, data, seen, _ = ask(COMPLETIONS, body)
    asked = {**(options or {}), "include_usage": True}
    assert (status, seen[0][2]) == (200, {**body, "stream_options": asked})
    assert payloads(data) == list(events(COMPLETIONS, {}))


def test_a_routing_key_in_the_body_names_the_client_but_does_not_override_the_header():
    body = {**PATHS[GENERATE], "routing_key": "bob"}
    assert ask(GENERATE, body)[3][0][2]["routing_key"] == "bob"
    assert ask(GENERATE, body, **{headers.CLIENT: "ann"})[3][0][2]["routing_key"] == "ann"


def test_fields_that_workers_need_are_forwarded():
    sent = {headers.PROGRAM: "7", headers.DEPTH: "2", headers.OUTPUT_TOKENS: "5"}
    reached = ask(GENERATE, **sent, Authorization="Bearer for-the-worker")[3][0][1]
    assert {name: reached[name] for name in sent} == sent
    assert reached["Authorization"] == "Bearer for-the-worker"


def test_a_list_with_one_prompt_is_that_prompt():
    body = {"model": "m", "prompt": ["once"], "max_tokens": 3}
    status, _, _, seen, _ = ask(COMPLETIONS, body)
    assert (status, seen[0][2]["prompt"]) == (200, "once")


KEYS = {"k-ann": "ann", "k-bob": "bob"}


def test_a_key_determines_the_client():
    sent = {"Authorization": "Bearer k-bob", headers.CLIENT: "ann", headers.ROUTING_KEY: "ann"}
    body = {**PATHS[GENERATE], "routing_key": "ann", "user": "ann"}
    _, _, _, seen, metrics = ask(GENERATE, body, router={"keys": KEYS}, **sent)
    _, reached, body = seen[0]
    assert (reached[headers.ROUTING_KEY], body["routing_key"]) == ("bob", "bob")
    assert "Authorization" not in reached
    assert 'client="ann"' not in metrics


@pytest.mark.parametrize(
    "sent", [{}, {"Authorization": "Bearer k-eve"}, {"Authorization": "k-bob"}]
)
@pytest.mark.parametrize("path", PATHS)
def test_unknown_keys_are_refused(path, sent):
    status, _, data, seen, _ = ask(path, router={"keys": KEYS}, **sent)
    assert (status, json.loads(data)["error"]["type"]) == (401, "authentication_error")
    assert not seen


def test_unknown_keys_are_refused_before_the_body_is_read():
    body = {"text": "a" * 5000}
    assert ask(GENERATE, body, router={"keys": KEYS, "max_body_bytes": 4000})[0] == 401


def test_models_come_from_a_worker_and_need_a_key_too():
    async def run(**settings):
        async with (
            cluster(1, router=settings) as (under_test, _),
            under_test.session.get(f"{under_test.url}/v1/models") as answer,
        ):
            return answer.status, await answer.json()

    assert asyncio.run(run()) == (200, {"data": [{"id": "m"}]})
    assert asyncio.run(run(keys=KEYS))[0] == 401


MALFORMED = [
    (GENERATE, {"sampling_params": {}}, "the body must have input_ids or text"),
    (GENERATE, {"input_ids": []}, "the prompt must not be empty"),
    (GENERATE, {"input_ids": [[1], [2]]}, "one prompt"),
    (GENERATE, {"input_ids": [-1]}, "0 to 2^32 - 1"),
    (GENERATE, {"text": "a", "sampling_params": {"n": 2}}, "use /v1/completions for several"),
    (GENERATE, {"text": "a", "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens"),
    (COMPLETIONS, {"model": "m"}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", "b"]}, "one prompt"),
    (COMPLETIONS, {"prompt": [[1], [2]]}, "one prompt"),
    (COMPLETIONS, {"prompt": [1, "a"]}, "token ids"),
    (CHAT, {"messages": "hello"}, "messages"),
    (CHAT, {**PATHS[CHAT], "n": 17}, "n: must be from 1 to 16"),
    (CHAT, {**PATHS[CHAT], "n": 0}, "n: must be from 1 to 16"),
    (CHAT, {**PATHS[CHAT], "user": 7}, "user"),
    (CHAT, {**PATHS[CHAT], "user": "a" * 513}, "at most 512 characters"),
    (CHAT, {**PATHS[CHAT], "max_tokens": 2.5}, "max_tokens"),
    (GENERATE, {"text": ["a", "b"]}, "one prompt"),
]


@pytest.mark.parametrize(("path", "body", "complaint"), MALFORMED)
def test_malformed_bodies_get_a_400_in_openais_shape(path, body, complaint):
    status, returned, data, seen, metrics = ask(path, body)
    error = json.loads(data)["error"]
    assert (status, error["code"], error["type"]) == (400, 400, "invalid_request_error")
    assert complaint in error["message"]
    assert returned["Content-Type"].startswith("application/json")
    assert not seen
    assert 'fairbench_refused_total{status="400"} 1.0' in metrics


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b'{"text": "\xff"}', b'{"text": "\\ud83d"}', b"[" * 100_000]
)
def test_a_body_that_is_not_a_json_object_gets_a_400(data):
    async def run():
        async with cluster(1) as (under_test, (worker,)):
            url = under_test.url + GENERATE
            async with under_test.session.post(url, data=data) as answer:
                return answer.status, (await answer.json())["error"]["type"], worker.seen

    assert asyncio.run(run()) == (400, "invalid_request_error", [])


def test_an_oversized_body_gets_a_413():
    body = {"text": "a" * 5000}
    status, _, data, seen, _ = ask(GENERATE, body, router={"max_body_bytes": 4000})
    assert (status, json.loads(data)["error"]["code"], seen) == (413, 413, [])
    assert ask(GENERATE, body, router={"max_body_bytes": 6000})[0] == 200


def test_a_wrongly_compressed_body_gets_a_400():
    async def run():
        async with cluster(1) as (under_test, (worker,)):
            sent = {"data": b"{}", "headers": {"Content-Encoding": "gzip"}}
            async with under_test.session.post(under_test.url + GENERATE, **sent) as answer:
                return answer.status, (await answer.json())["error"]["type"], worker.seen

    assert asyncio.run(run()) == (400, "invalid_request_error", [])


@pytest.mark.parametrize("name", [headers.PROGRAM, headers.DEPTH])
def test_a_program_that_is_not_a_number_gets_a_400(name):
    assert ask(GENERATE, **{name: "seven"})[0] == 400
