"""Test connections that send nothing, including more of them than there are descriptors."""

import asyncio
import os
import resource
import subprocess
import sys
import time
import tracemalloc
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web, web_protocol

from fairbench_load import http_server
from fairbench_load import http_server as connections
from fairbench_load.http_server import listening
from tests.serve.live_router import GENERATE, PATHS, Worker, until

ASKED = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


@asynccontextmanager
async def server(monkeypatch, most=1000):
    """Run a server whose slow answers wait for ``released``. Yield its port and ``slow``."""
    monkeypatch.setattr(http_server, "most_connections", lambda: most)
    slow = SimpleNamespace(asked=0, released=asyncio.Event())

    async def answer(request):
        if request.path == "/slow":
            slow.asked += 1
            await slow.released.wait()
        return web.Response(text="served")

    app = web.Application()
    app.router.add_get("/{any:.*}", answer)
    async with listening(app, "127.0.0.1", 0) as found, all_closed():
        yield int(found.url.rpartition(":")[2]), slow


WRITERS = []


async def opened(port, text=b""):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    WRITERS.append(writer)
    writer.write(text)
    return reader, writer


@asynccontextmanager
async def all_closed():
    """Close all connections that were opened inside the block."""
    try:
        yield
    finally:
        for writer in WRITERS:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        WRITERS.clear()


async def served(port):
    reader, writer = await opened(port, ASKED)
    async with asyncio.timeout(60):
        line = await reader.readline()
    writer.close()  # so that it occupies no slot
    return line == b"HTTP/1.1 200 OK\r\n"


def test_the_limit_on_open_files_leaves_a_worker_for_each_client(monkeypatch):
    limits = {300: 118, 1024: 480, 64: 24, 2: 1}
    for limit, most in limits.items():
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert connections.most_connections() == most


def test_only_idle_connections_are_closed_for_new_connections(monkeypatch, caplog):
    async def run():
        async with server(monkeypatch, most=8) as (port, slow):
            busy = [await opened(port, ASKED.replace(b"/ ", b"/slow ")) for _ in range(4)]
            await until(lambda: slow.asked == 4)
            idle = [await opened(port) for _ in range(40)]
            answers = [await served(port) for _ in range(5)]
            slow.released.set()
            lines = [await reader.readline() for reader, _ in busy]
            closed = 0
            for reader, _ in idle[:30]:
                closed += await reader.read() == b""
            return answers, lines, closed

    answers, lines, closed = asyncio.run(run())
    assert answers == [True] * 5
    assert lines == [b"HTTP/1.1 200 OK\r\n"] * 4
    assert closed == 30
    assert len(caplog.records) == 1, "one line a minute"


def test_a_new_connection_waits_while_all_others_have_a_request(monkeypatch):
    async def run():
        async with server(monkeypatch, most=3) as (port, slow):
            for _ in range(3):
                await opened(port, ASKED.replace(b"/ ", b"/slow "))
            await until(lambda: slow.asked == 3)
            waiting = asyncio.create_task(served(port))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            slow.released.set()
            return await waiting

    assert asyncio.run(run())


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n"])
def test_a_connection_without_a_whole_header_is_closed(sent, monkeypatch):
    """The connection is closed even if parts of the header keep arriving."""
    monkeypatch.setattr(connections, "HEADER_S", 0.2)
    monkeypatch.setattr(connections, "LOOK_S", 0.05)

    async def run():
        async with server(monkeypatch) as (port, _):
            reader, writer = await opened(port, sent)
            ended = asyncio.create_task(reader.read())
            while not ended.done() and sent:
                writer.write(b"x: y\r\n")
                await asyncio.sleep(0.05)
            async with asyncio.timeout(60):
                try:
                    return await ended
                except ConnectionResetError:  # because of the bytes in transit
                    return b""

    assert asyncio.run(run()) == b""


@pytest.mark.slow
def test_a_connection_stays_open_while_the_event_loop_is_late(monkeypatch):
    """The request may have arrived while the loop was busy with other requests."""
    monkeypatch.setattr(connections, "HEADER_S", 0.5)
    monkeypatch.setattr(connections, "LOOK_S", 0.05)

    async def run():
        async with server(monkeypatch) as (port, _):
            reader, writer = await opened(port)
            await asyncio.sleep(0.1)  # the server has accepted the connection
            time.sleep(1.0)
            await asyncio.sleep(0.1)  # the server looks for idle connections
            writer.write(ASKED)
            return await reader.readline()

    assert asyncio.run(run()) == b"HTTP/1.1 200 OK\r\n"


def test_an_answered_connection_may_stay_idle_longer(monkeypatch):
    monkeypatch.setattr(connections, "IDLE_S", 600.0)
    monkeypatch.setattr(connections, "LOOK_S", 0.02)

    async def run():
        async with server(monkeypatch) as (port, _):
            reader, writer = await opened(port, ASKED)
            await reader.readuntil(b"served")
            monkeypatch.setattr(connections, "HEADER_S", 0.0)  # a silent connection is closed
            silent, _ = await opened(port)
            assert await silent.read() == b""
            writer.write(ASKED)
            return await reader.readuntil(b"served")

    assert asyncio.run(run()).startswith(b"HTTP/1.1 200")


LIMIT, FLOOD, QUIET_S = 300, 300, 3.0
SERVE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
from fairbench.cli.main import main
sys.argv[:2] = ["fairbench", "serve", "--port", "0", "--router", "round-robin", "--worker-url"]
main()
"""


@pytest.mark.slow
@pytest.mark.alone
def test_a_flood_of_idle_connections_beyond_the_limit_on_files_logs_one_line(tmp_path):
    """This flood once caused 49,378 tracebacks and a busy core."""

    async def run():
        worker = Worker()
        await worker.start()
        log = tmp_path / "log"
        with log.open("wb") as told:
            command = [sys.executable, "-c", SERVE, str(LIMIT), worker.url]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told)
            try:
                line = await asyncio.to_thread(process.stdout.readline)
                port = int(line.decode().strip().rpartition(":")[2])
                async with all_closed():
                    for _ in range(FLOOD):
                        await opened(port)
                    before_s = cpu_s(process.pid)
                    await asyncio.sleep(QUIET_S)
                    used_s = cpu_s(process.pid) - before_s
                    found = await asked(port)
            finally:
                process.terminate()
                await asyncio.to_thread(process.wait)
                process.stdout.close()
                await worker.stop()
        return found, used_s, log.read_text()

    found, used_s, log = asyncio.run(run())
    assert found == 200
    assert used_s < QUIET_S / 3
    assert "Traceback" not in log
    assert log.count("limit on open files") == 1


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def asked(port):
    from aiohttp import ClientSession

    async with ClientSession() as session:
        url = f"http://127.0.0.1:{port}{GENERATE}"
        async with session.post(url, json=PATHS[GENERATE]) as answer:
            return answer.status


@pytest.mark.skipif(
    not hasattr(web_protocol.RequestHandler, "_msg_queue_resume_size"),
    reason="this release of aiohttp reads any number of requests ahead",
)
@pytest.mark.parametrize("size", [30_000, 60_000, 100_000])
def test_requests_sent_ahead_of_an_answer_take_little_memory(size, monkeypatch):
    asked = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + bytes(size)

    async def run():
        async with server(monkeypatch) as (port, slow):
            found = [await opened(port, ASKED.replace(b"/ ", b"/slow ")) for _ in range(4)]
            await until(lambda: slow.asked == 4)
            tracemalloc.start()
            for _, writer in found:
                for _ in range(2**22 // size):
                    writer.write(asked)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.1):
                            await writer.drain()
                            continue
                    break
            await asyncio.sleep(0)
            kept, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            unsent = sum(writer.transport.get_write_buffer_size() for _, writer in found)
            slow.released.set()
            answers = [await reader.readline() for reader, _ in found]
            assert answers == [b"HTTP/1.1 200 OK\r\n"] * 4
            return kept - unsent

    assert asyncio.run(run()) < 4 * 2**19


def test_requests_sent_ahead_are_all_answered(monkeypatch):
    async def run():
        async with server(monkeypatch) as (port, _):
            reader, _ = await opened(port, ASKED * 20)
            return [await reader.readuntil(b"served") for _ in range(20)]

    assert len(asyncio.run(run())) == 20
