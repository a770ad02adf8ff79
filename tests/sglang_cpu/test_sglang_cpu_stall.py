"""Test that the router soon takes down a hanging SGLang worker whose page says it is healthy.

The scheduler process hangs, in a client's pattern or because it is stopped, while the HTTP server
still answers ``/health``.
"""

import asyncio
import os
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fairbench_load import headers
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve.health import LONGEST_STALLS
from tests.serve.live_router import GENERATE, Worker, router_before, until
from tests.sglang_cpu.sglang_cpu_server import sglang_server, why_absent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

# long, because the machine may be busy; the tiny model takes milliseconds per token
STALL_S = 20.0
LOOK_S = STALL_S / 8  # seconds between two checks of the watchdog
FLAGS = ("--max-total-tokens=8000", "--max-running-requests=8")
SHORT = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
LONG = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 4_000, "ignore_eos": True}}
# SGLang searches the text again after each token, in 3^n ways for n characters.
PATTERN = {"stop_regex": "(.|.|.)+ZZZ"}
DEADLY = {**LONG, "sampling_params": {**LONG["sampling_params"], **PATTERN}}


@contextmanager
def stopped(server):
    """Stop the server's scheduler process inside the block."""
    (scheduler,) = schedulers_of(server)
    os.kill(scheduler, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(scheduler, signal.SIGCONT)


def schedulers_of(server):
    """Return the server's scheduler processes."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # a process of another test that has ended
            words, group = (folder / "cmdline").read_bytes(), os.getpgid(int(folder.name))
            if words.startswith(b"sglang::scheduler") and group == server.group:
                found.append(int(folder.name))
    return found


async def answer_of(under_test, body):
    async with under_test.post(GENERATE, body) as answer:
        return answer.status, answer.headers.get(headers.WORKER), await answer.text()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with sglang_server(tmp_path_factory.mktemp("server"), *FLAGS) as started:
        yield started


def beside_another(server, test):
    """Run ``test`` with a router before the server, worker 0, and a small worker that answers."""

    async def run():
        other = Worker()
        await other.start()
        settings = {"router": "least-loaded", "stall_s": STALL_S, "patterns": True}
        workers = [WorkerAddress(server.url), other]
        try:
            async with router_before(workers, **settings) as under_test:
                await until(lambda: under_test.up == {0, 1})
                await test(under_test, other)
        finally:
            await other.stop()

    asyncio.run(run())


async def sent_to_server(under_test, other, body):
    """Send a request. Return once it runs at worker 0."""
    other.healthy = False
    await until(lambda: under_test.up == {0})
    asked = asyncio.create_task(answer_of(under_test, body))
    await until(lambda: under_test.proxy.dispatcher.flights[0])
    other.healthy = True
    await until(lambda: under_test.up == {0, 1})
    return asked


async def down_in_time(under_test, server, asked):
    """Check that the request ends within the stated time while others are served."""
    began_s = time.monotonic()
    status, _, said = await asked
    took_s = time.monotonic() - began_s
    assert (status, under_test.up) == (502, {1}), said
    assert STALL_S / 2 - LOOK_S <= took_s < LONGEST_STALLS * STALL_S - LOOK_S
    async with under_test.session.get(f"{server.url}/health") as answer:
        assert answer.status == 200
    for _ in range(4):
        status, worker, _ = await answer_of(under_test, SHORT)
        assert (status, worker) == (200, "1")
    print(f"down {took_s:.1f} s after it hung; --stall-timeout is {STALL_S:g} s")


def test_a_stopped_scheduler_is_down_in_time_and_returns_once_it_decodes(server):
    async def test(under_test, other):
        with stopped(server):
            asked = await sent_to_server(under_test, other, LONG)
            await down_in_time(under_test, server, asked)
            assert len(other.seen) == 4  # the request was sent to no other worker
        await until(lambda: under_test.up == {0, 1})
        other.healthy = False
        await until(lambda: under_test.up == {0})
        assert (await answer_of(under_test, SHORT))[:2] == (200, "0")

    beside_another(server, test)


def test_a_scheduler_that_hangs_in_a_pattern_is_down_in_time(server):
    """This test comes last, because the server hangs for good."""

    async def test(under_test, other):
        asked = await sent_to_server(under_test, other, DEADLY)
        await down_in_time(under_test, server, asked)
        assert under_test.up == {1}

    beside_another(server, test)
