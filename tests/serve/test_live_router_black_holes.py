"""Test workers that answer 200 without an answer: requests are served by another worker."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiohttp import web

from fairbench_load import headers
from fairbench_load.openai import Fault
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve import answers as answers_module
from fairbench_serve.answers import StreamReader
from tests.serve.live_router import CHAT, PATHS, Worker, router_before

EVENTS = "text/event-stream"
ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}


def data(*events, done=True):
    """Return a stream of these events. A text stands for itself."""
    parts = [one if isinstance(one, str) else f"data: {json.dumps(one)}" for one in events]
    return "".join(f"{part}\n\n" for part in [*parts, *(["data: [DONE]"] if done else [])])


def choice(**fields):
    return {"choices": [{"index": 0, **fields}]}


def ended(reason, text="half"):
    return choice(message={"role": "assistant", "content": text}, finish_reason=reason)


# answers to requests that are not streams, and the type of their content
WHOLE = {
    "error": {"error": {"message": "CUDA error", "type": "server_error"}},
    "error text": {"error": "model is loading"},
    "object error": {"object": "error", "message": "no", "type": "BadRequestError", "code": 400},
    "detail": {"detail": "Not Found"},
    "message": {"message": "no Route matched with those values"},
    "empty": {},
    "status": {"status": "ok"},
    "no choices": {"id": "x", "object": "chat.completion", "choices": [], "usage": {}},
    "null choices": {"choices": None},
    "empty choice": choice(),
    "null message": choice(message=None),
    "unfinished": choice(message={"role": "assistant", "content": None}),
    "abort": ended("abort"),
    "abort of nothing": ended("abort", ""),
    "error reason": ended("error"),
    "no resource": ended("insufficient_system_resource"),
    "error in the choice": choice(message={"content": "half"}, error={"code": 502}),
    "no token": {**ended("stop", ""), "usage": {"prompt_tokens": 9, "completion_tokens": 0}},
    "sglang abort": {"text": "", "meta_info": {"finish_reason": {"type": "abort"}}},
    "null": None,
    "list": [{"choices": []}],
    "word": "ok",
    "page": ("<html><body>Welcome to nginx</body></html>", "text/html"),
    "page as JSON": ("<html></html>", "application/json"),
    "nothing": ("", "application/json"),
    "half": ('{"choices": [{"message": {"content": "ha', "application/json"),
    "stream": (data(ROLE, choice(delta={"content": "x"})), EVENTS),
}
STREAMS = {
    "role and error": data(ROLE, {"error": {"message": "CUDA error", "code": 500}}),
    "error": data({"error": {"message": "CUDA error"}}),
    "error text": data({"error": "model is loading"}, done=False),
    "object error": data(ROLE, {"object": "error", "message": "no", "code": 400}),
    "named error": data(f"data: {json.dumps(ROLE)}", 'event: error\ndata: {"message": "no"}'),
    "named error of words": data(ROLE, "event: error\ndata: overloaded", done=False),
    "only done": data(),
    "only a role": data(ROLE),
    "role and no done": data(ROLE, done=False),
    "only comments": data(": processing", ": processing"),
    "comments and error": data(": processing", ROLE, {"error": {"message": "no"}}),
    "only usage": data({"choices": [], "usage": {"completion_tokens": 0}}),
    "empty deltas": data(*[choice(delta={"content": ""})] * 3),
    "abort": data(ROLE, choice(delta={}, finish_reason="abort")),
    "error reason": data(ROLE, choice(delta={"content": "x"}, finish_reason="error")),
    "no token": data(
        ROLE, choice(delta={}, finish_reason="stop"), {"usage": {"completion_tokens": 0}}
    ),
    "sglang abort": data({"text": "", "meta_info": {"finish_reason": {"type": "abort"}}}),
    "detail": data({"detail": "Not Found"}),
    "empty object": data({}),
    "words": data("data: overloaded"),
    "a page": "<html>",
    "an error without its event": '{"error": {"message": "no"}}',
    "nothing": "",
}


TOO_LONG = {"error": {"message": "too long", "code": 400}}
ERRORS = 'fairbench_requests_total{client="default",outcome="error"}'


@asynccontextmanager
async def saying(body, content_type, seen):
    """Run a healthy worker that gives this answer to all requests. Yield its address."""

    async def answer(request):
        seen.append(await request.read())
        await asyncio.sleep(0)
        return web.Response(text=body, content_type=content_type)

    async def healthy(_):
        return web.Response()

    app = web.Application()
    app.add_routes([web.post(path, answer) for path in PATHS])
    app.router.add_get("/health", healthy)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield WorkerAddress(f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


async def answers(under_test, requests, body, path=CHAT):
    """Return the (status, worker, whether it is an error) of each of these requests."""
    room = asyncio.Semaphore(8)

    async def one(number):
        sent = {headers.CLIENT: f"client-{number % 5}"}
        async with room, under_test.post(path, body, **sent) as answer:
            said = await answer.read()
            return answer.status, answer.headers.get(headers.WORKER), b'"error"' in said

    return await asyncio.gather(*(one(number) for number in range(requests)))


async def beside(bad, good, requests, body, path=CHAT):
    """Send requests to bad and good workers. Return answers, times reached and workers up."""
    async with AsyncExitStack() as stack:
        seen = []
        addresses = [await stack.enter_async_context(saying(*one, seen)) for one in bad]
        workers = [Worker() for _ in range(good)]
        for worker in workers:
            await worker.start()
            stack.push_async_callback(worker.stop)
        under_test = await stack.enter_async_context(
            router_before([*addresses, *workers], router="least-loaded")
        )
        return await answers(under_test, requests, body, path), len(seen), under_test.up


def said(answer):
    return answer if isinstance(answer, tuple) else (json.dumps(answer), "application/json")


KINDS = [
    *((said(answer), False) for answer in WHOLE.values()),
    *(((text, EVENTS), True) for text in STREAMS.values()),
    *((said(WHOLE[name]), True) for name in ("error", "empty", "page")),  # instead of a stream
]
IDS = [*WHOLE, *(f"{name} (stream)" for name in STREAMS), *["no stream"] * 3]


@pytest.mark.parametrize(
    "requests", [24, pytest.param(200, marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize(("bad", "stream"), KINDS, ids=IDS)
def test_an_answer_without_an_answer_costs_nothing(bad, stream, requests):
    body = {**PATHS[CHAT], "stream": stream}
    found, reached, up = asyncio.run(beside([bad], 1, requests, body))
    assert found == [(200, "1", False)] * requests
    assert reached <= 3 + 8  # others are on their way until the third is reported
    assert up == ({0, 1} if '"code": 400' in bad[0] else {1})  # a refusal of these requests


@pytest.mark.parametrize("bad", [2, 3])
@pytest.mark.parametrize("name", ["error", "abort", "page", "no token"])
def test_one_good_worker_serves_what_several_bad_ones_answer(name, bad):
    """The bad workers answer at once, and are the least loaded."""
    found, reached, up = asyncio.run(beside([said(WHOLE[name])] * bad, 1, 24, PATHS[CHAT]))
    assert found == [(200, str(bad), False)] * 24
    assert up == {bad}
    assert reached <= bad * (3 + 8)


@pytest.mark.parametrize(
    ("bad", "stream", "told"),
    [
        (said(WHOLE["error"]), False, (502, "CUDA error")),
        (said(TOO_LONG), False, (400, "too long")),
        (
            (data(ROLE, {"error": {"message": "too long", "code": 400}}), EVENTS),
            True,
            (400, "too long"),
        ),
        (said(WHOLE["abort"]), False, (502, "aborted")),
        (said(WHOLE["empty"]), True, (502, "without output")),
        ((data(), EVENTS), True, (502, "without output")),
        (said(WHOLE["page"]), False, (502, "not an answer")),
    ],
)
def test_a_client_of_bad_workers_only_gets_an_error_in_the_usual_form(bad, stream, told):
    async def run():
        async with AsyncExitStack() as stack:
            address = await stack.enter_async_context(saying(*bad, []))
            under_test = await stack.enter_async_context(router_before([address]))
            async with under_test.post(CHAT, {**PATHS[CHAT], "stream": stream}) as answer:
                said = (await answer.json())["error"]["message"]
                return answer.status, said, answer.headers[headers.WORKER], under_test.up

    status, text, worker, up = asyncio.run(run())
    assert (status, worker, up) == (told[0], "0", {0})
    assert told[1] in text


AFTER = [
    choice(delta={"content": "two"}, finish_reason="insufficient_system_resource"),
    {"object": "error", "message": "no"},
    {"error": {"message": "no"}},
    "event: error\ndata: {}",
    "data: overloaded",
]


@pytest.mark.parametrize("fault", AFTER, ids=json.dumps)
def test_a_fault_after_the_first_output_ends_the_stream_with_an_error(fault):
    """The request is not tried again, because its client already has a part of the answer."""

    class Late(Worker):
        async def stream(self, request, body):
            response = web.StreamResponse(headers={"Content-Type": EVENTS})
            await response.prepare(request)
            for text in (data(choice(delta={"content": "one"}), done=False), data(fault)):
                await self.wait_at(len(self.padding))
                await response.write(text.encode())
                self.padding = [text]
            return response

    async def run():
        workers = [Late(held_at=1), Late(held_at=1)]
        async with AsyncExitStack() as stack:
            for worker in workers:
                await worker.start()
                stack.push_async_callback(worker.stop)
            under_test = await stack.enter_async_context(router_before(workers))
            async with under_test.post(CHAT, {**PATHS[CHAT], "stream": True}) as answer:
                begun = await answer.content.readany()
                for worker in workers:
                    worker.released.set()
                rest = await answer.content.read()
            failed = await under_test.metric(
                'fairbench_requests_total{client="default",outcome="error"}'
            )
            return begun, rest, failed, sum(len(worker.seen) for worker in workers)

    begun, rest, failed, seen = asyncio.run(run())
    assert b"one" in begun
    assert b'{"error": ' in rest or b'{"error":{' in rest
    assert (failed, seen) == (1, 1)


def test_endless_deltas_without_output_take_no_more_memory_than_an_event(monkeypatch):
    monkeypatch.setattr(answers_module, "MAX_EVENT_BYTES", 1000)
    reader = StreamReader(hide_usage=True)
    empty = data(choice(delta={"content": ""}), done=False).encode()
    assert [reader.feed(empty) for _ in range(40)] == [b""] * 40
    assert reader.fault == Fault("a stream without output")
    reader = StreamReader(hide_usage=True)
    assert [reader.feed(b": comment\n\n") for _ in range(400)] == [b""] * 400
    assert reader.fault is None
