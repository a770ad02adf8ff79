"""Test that a worker has served a stream once it has said that its answer is over."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve import exchange
from tests.serve.live_router import CHAT, PATHS, Worker, router_before, streamed

HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def event(**choice):
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


WORD = event(delta={"content": "one"})
STOP = event(delta={}, finish_reason="stop")
DONE = "data: [DONE]\n\n"


def chunk(text, last=""):
    return f"{HEAD}Transfer-Encoding: chunked\r\n\r\n{len(text):x}\r\n{text}\r\n{last}"


def plain(text):
    return f"{HEAD}Connection: close\r\n\r\n{text}"


@asynccontextmanager
async def replying(reply, stays_open):
    """Run a healthy worker that gives this reply. It then closes the connection, or does not."""
    stopped = asyncio.Event()

    async def answer(reader, writer):
        asked = await reader.readuntil(b"\r\n\r\n")
        is_post = asked.startswith(b"POST")
        writer.write(reply.encode() if is_post else b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        if is_post and stays_open:
            await stopped.wait()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield WorkerAddress(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        stopped.set()
        server.close()


def served(reply, stays_open):
    """Return the text, and whether a router counts the stream of this worker as whole."""

    async def run():
        async with replying(reply, stays_open) as worker, router_before([worker]) as under_test:
            async with asyncio.timeout(60), under_test.post(CHAT, streamed(CHAT)) as answer:
                said = await answer.text()
            count = 'fairbench_requests_total{client="default",outcome="ok"}'
            return await under_test.metric(count) == 1, said

    return asyncio.run(run())


WHOLE = {
    "a connection that stays open after the end": (plain(WORD + STOP + DONE), True),
    "a missing last chunk": (chunk(WORD + STOP + DONE), True),
    "a reason and no last event": (plain(WORD + STOP), False),
    "a reason, and an open connection": (plain(WORD + STOP), True),
    "a reason, and a connection that breaks": (chunk(WORD + STOP), False),
    "a last event and no reason": (plain(WORD + DONE), False),
    "a space after the last event": (plain(WORD + STOP + "data: [DONE] \n\n"), False),
    "a mark of the byte order": (plain("\ufeff" + WORD + STOP + DONE), False),
}


@pytest.mark.parametrize("name", WHOLE)
def test_an_answer_that_is_over_is_served_however_its_connection_ends(name, monkeypatch):
    monkeypatch.setattr(exchange, "END_S", 0.05)
    monkeypatch.setattr(exchange, "USAGE_S", 0.05)
    is_ok, said = served(*WHOLE[name])
    assert is_ok
    assert "one" in said
    assert "error" not in said


@pytest.mark.parametrize("reply", [plain(WORD), chunk(WORD), chunk(WORD, "0\r\n\r\n")])
def test_an_answer_that_is_not_over_is_cut(reply):
    is_ok, said = served(reply, stays_open=False)
    assert not is_ok
    assert "the worker failed during this answer" in said


@pytest.mark.parametrize("reply", ["", "HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 200 OK\r\n"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_worker_that_closes_every_connection_is_taken_out(reply, stream):
    """A kept connection may break by chance, so the new connection to the same worker decides."""

    async def run():
        good = Worker()
        await good.start()
        found = []
        async with replying(reply, stays_open=False) as bad, router_before([bad, good]) as router:
            for _ in range(8):
                async with router.post(CHAT, {**PATHS[CHAT], "stream": stream}) as answer:
                    await answer.read()
                    found.append(answer.status)
            up = router.up
        await good.stop()
        return found, up

    assert asyncio.run(run()) == ([200] * 8, {1})
