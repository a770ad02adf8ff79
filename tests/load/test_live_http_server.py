"""Test the HTTP server that the router and the emulator share."""

import asyncio
import os
import signal

import pytest
from aiohttp import web

from fairbench_load.http_server import listening

KEY = "sk-secret"
MALFORMED = [
    f"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\0\r\n\r\n",
    f"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\nx: {KEY}\r\n\r\n",
    f"GET /{KEY}\xff HTTP/9.9\r\n\r\n",
]


def answered(text, handler):
    """Return the first line of the answer to this text."""

    async def run():
        app = web.Application()
        app.router.add_get("/", handler)
        async with listening(app, "127.0.0.1", 0) as server:
            port = int(server.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(text.encode("latin-1"))
            line = await reader.readline()
            writer.close()
            await writer.wait_closed()
            return line.decode()

    return asyncio.run(run())


async def fine(_):
    return web.Response()


async def broken(_):
    raise ValueError("a bug of ours")


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_requests_are_refused_and_leave_nothing_in_the_log(text, caplog):
    assert " 400 " in answered(text, fine)
    assert caplog.text == ""


async def left(request):
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"some")
    raise ConnectionResetError("as writing does once the client has left")


def test_clients_that_leave_are_not_logged(caplog):
    assert " 200 " in answered("GET / HTTP/1.1\r\nHost: a\r\n\r\n", left)
    assert caplog.text == ""


def test_a_stop_signal_during_the_start_is_obeyed():
    async def starting(_):
        os.kill(os.getpid(), signal.SIGTERM)

    async def run():
        app = web.Application()
        app.on_startup.append(starting)
        async with listening(app, "127.0.0.1", 0) as server, asyncio.timeout(120):
            return await server.stop.wait()

    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert asyncio.run(run())
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_internal_error_is_logged(caplog):
    assert " 500 " in answered("GET / HTTP/1.1\r\nHost: a\r\n\r\n", broken)
    assert "a bug of ours" in caplog.text
