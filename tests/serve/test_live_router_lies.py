"""Test false worker answers: wrong counts, odd statuses, endless bodies, odd numbers."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve import exchange
from fairbench_serve.answers import HighestCost, reported, usage_of
from tests.serve.live_router import GENERATE, PATHS, Worker, router_before, streamed


async def healthy(_):
    return web.Response()


@asynccontextmanager
async def answering(handler):
    """Run a healthy worker that gives this answer to generation requests. Yield its address."""
    app = web.Application()
    app.add_routes([web.post(path, handler) for path in PATHS])
    app.router.add_get("/health", healthy)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield WorkerAddress(f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


async def asked(handler, path=GENERATE, **settings):
    """Return the status and body of an answer through a router with only that worker."""
    async with answering(handler) as address, router_before([address], **settings) as under_test:
        async with under_test.post(path) as answer:
            told = answer.status, await answer.json()
        assert under_test.proxy.dispatcher.under_way == 0
        return told


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("path", PATHS)
def test_a_workers_answer_cannot_redirect_a_prompt(status, path):
    async def test():
        other = Worker()
        await other.start()

        async def elsewhere(_):
            return web.Response(status=status, headers={"Location": other.url + path})

        try:
            told = await asked(elsewhere, path)
            return told, other.seen
        finally:
            await other.stop()

    (status_told, said), seen = asyncio.run(test())
    assert (status_told, said["error"]["type"], seen) == (502, "server_error", [])


@pytest.mark.parametrize("status", [304, 600, 999])
def test_an_invalid_status_does_not_reach_a_client(status):
    async def odd(_):
        return web.json_response({"text": "x"}, status=status)

    told, said = asyncio.run(asked(odd))
    assert (told, said["error"]["type"]) == (502, "server_error")


@pytest.mark.parametrize(
    ("status", "wait", "passed"),
    [
        *((503, wait, wait) for wait in ("1", "3600")),
        *((503, wait, None) for wait in ("-5", "3601", "99999999999", "1.5", "soon", "\u0661", "")),
        (200, "html", None),
    ],
)
def test_only_plain_waits_and_json_are_passed_on(status, wait, passed):
    async def page(_):
        body = b"<script>alert(1)</script>" if status == 503 else b'{"text": "x"}'
        shown = {"Content-Type": "text/html", "Retry-After": wait}
        return web.Response(body=body, status=status, headers=shown)

    async def run():
        async with (
            answering(page) as address,
            router_before([address]) as under_test,
            under_test.post(GENERATE) as answer,
        ):
            assert answer.content_type == "application/json"
            assert b"script" not in await answer.read()
            await answer.json()
            return answer.status, answer.headers.get("Retry-After")

    assert asyncio.run(run()) == (status, passed)


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_is_an_event_stream_whatever_its_parameters_are(path):
    async def stream(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; x=<html>"})
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"text": "x"}]}\n\ndata: [DONE]\n\n')
        return response

    async def run():
        async with (
            answering(stream) as address,
            router_before([address]) as under_test,
            under_test.post(path, streamed(path)) as answer,
        ):
            return answer.headers["Content-Type"]

    assert asyncio.run(run()) == "text/event-stream"


@pytest.mark.parametrize("number", [-1, -(10**9), 0, 10**15, -5.0])
def test_an_absurd_usage_of_a_whole_answer_is_not_free(number):
    """The prompt costs 4 tokens by the router's count, and the answer of 40 bytes 10 tokens.

    If no answer can have the reported counts, the whole JSON text counts, up to the request's
    limit.
    """
    usage = dict.fromkeys(("prompt_tokens", "completion_tokens"), number)
    answer = json.dumps({"choices": [{"text": "x" * 40}], "usage": usage}).encode()
    charge = reported(usage_of(answer), HighestCost(4, 400_000, 16))
    assert charge == (4, 10 if number == 0 else 16, 0)


def test_an_endless_answer_takes_no_more_memory_than_a_body_may(monkeypatch):
    """The connection does not count as closed for idleness, after which it would be tried again."""
    monkeypatch.setattr(exchange, "MAX_BODY_BYTES", 2**20)
    sent = times = 0

    async def endless(request):
        nonlocal sent, times
        times += 1
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while True:
            await response.write(b" " * 2**16)
            sent += 2**16

    told, said = asyncio.run(asked(endless))
    assert (told, said["error"]["type"]) == (502, "server_error")
    assert sent > 2**20
    assert times == 2


@pytest.mark.parametrize("number", ["1e400", "2.5", '"7"', "[7]"])
def test_invalid_numbers_do_not_make_an_answer_free(number):
    """The answer is charged by its text, up to the requested length."""
    answer = b'{"text": "%b", "meta_info": {"completion_tokens": %b}}'
    answer %= b"four" * 100, number.encode()
    json.loads(answer)
    usage = usage_of(answer)
    assert usage.output_tokens > 100
    assert reported(usage, HighestCost(10, 10, 128)).output_tokens == min(128, usage.output_tokens)
    assert reported(usage, HighestCost(10, 10, 16)).output_tokens == 16
