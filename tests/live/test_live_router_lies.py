"""What workers answer that no engine does: other places, odd statuses, no end, odd numbers."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from live_router import GENERATE, PATHS, Worker, router_before

from fairbench.live.processes.addresses import WorkerAddress
from fairbench.live.router import exchange
from fairbench.live.router.answers import usage_of
from fairbench.live.router.charges import Asked, reported


async def healthy(_):
    return web.Response()


@asynccontextmanager
async def answering(handler):
    """The address of a healthy worker that answers whatever generates with this."""
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
    """Status and body of an answer through a router before only that worker."""
    async with answering(handler) as address, router_before([address], **settings) as under_test:
        async with under_test.post(path) as answer:
            told = answer.status, await answer.json()
        assert under_test.proxy.dispatcher.under_way == 0
        return told


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("path", PATHS)
def test_a_prompt_does_not_go_where_a_worker_says(status, path):
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
def test_a_status_that_is_none_does_not_reach_a_client(status):
    async def odd(_):
        return web.json_response({"text": "x"}, status=status)

    told, said = asyncio.run(asked(odd))
    assert (told, said["error"]["type"]) == (502, "server_error")


def test_an_answer_without_end_takes_no_more_memory_than_a_body_may(monkeypatch):
    """Nor is it taken for a connection that was closed for being idle: one more is asked."""
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
def test_numbers_that_are_none_do_not_make_an_answer_free(number):
    """It is charged as text from end to end, as far as it was asked for."""
    answer = b'{"text": "%b", "meta_info": {"completion_tokens": %b}}'
    answer %= b"four" * 100, number.encode()
    json.loads(answer)
    usage = usage_of(answer)
    assert usage.output_tokens > 100
    assert reported(usage, Asked(10, 10, 128)).output_tokens == min(128, usage.output_tokens)
    assert reported(usage, Asked(10, 10, 16)).output_tokens == 16
