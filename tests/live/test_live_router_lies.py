"""Test false worker answers: wrong counts, odd statuses, endless bodies, odd numbers."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from fairbench.live.processes.addresses import WorkerAddress
from fairbench.live.router import exchange
from fairbench.live.router.answers import usage_of
from fairbench.live.router.charges import Asked, reported
from tests.live.live_router import GENERATE, PATHS, Worker, router_before


async def healthy(_):
    return web.Response()


@asynccontextmanager
async def answering(handler):
    """Run a healthy worker that gives this answer to generation requests; yield its address."""
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


def test_an_endless_answer_takes_no_more_memory_than_a_body_may(monkeypatch):
    """It does not count as a connection closed for being idle, either, which would be tried once
    more.
    """
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
    assert reported(usage, Asked(10, 10, 128)).output_tokens == min(128, usage.output_tokens)
    assert reported(usage, Asked(10, 10, 16)).output_tokens == 16
