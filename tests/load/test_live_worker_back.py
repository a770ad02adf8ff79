"""Test a worker that returns after a kill: ``serve`` uses it immediately, Algorithm 2 does not."""

import asyncio
import json
import time
import urllib.request
from contextlib import ExitStack

import pytest
from aiohttp import ClientSession

from fairbench_serve.addresses import reserved
from tests.load.live_cli import WAIT_S
from tests.load.live_cluster import server

CLIENTS, STREAMS = 8, 6
BEFORE_S, AFTER_S = 4.0, 24.0


async def converse(session, url, client, until):
    """Send one client's requests in turn, which all begin with its own 3,000 tokens."""
    ids = [16 + client * 3_000 + n for n in range(3_000)]
    number = 0
    while not until.is_set():
        number += 1
        body = {
            "input_ids": [*ids, 16 + number % 30_000],
            "sampling_params": {"max_new_tokens": 60, "ignore_eos": True},
        }
        headers = {"x-fairbench-client": f"client-{client}"}
        async with session.post(f"{url}/generate", json=body, headers=headers) as answer:
            await answer.read()


async def traffic(url, events):
    """Send all clients' requests, while the events happen at their times."""
    until = asyncio.Event()
    async with ClientSession() as session:
        tasks = [
            asyncio.create_task(converse(session, url, client, until))
            for client in range(CLIENTS)
            for _ in range(STREAMS)
        ]
        for wait_s, happens in events:
            await asyncio.sleep(wait_s)
            await asyncio.to_thread(happens)
        until.set()
        await asyncio.gather(*tasks)


def finished(address):
    with urllib.request.urlopen(f"{address}/server_info", timeout=WAIT_S) as answer:
        return json.load(answer)["fairbench"]["counters"]["finished"]


def is_up(router):
    with urllib.request.urlopen(f"{router}/metrics", timeout=WAIT_S) as answer:
        return b'fairbench_worker_up{worker="0"} 1.0' in answer.read()


def wait_for(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def shares_after_a_restart(fill_below):
    """Return how many requests the restarted worker and another worker finished."""
    counts = {}
    with ExitStack() as stack:
        port = stack.enter_context(reserved("127.0.0.1", 0, "a port"))
        lost = ("emulate", "--port", port, "--gpu", "a100", "--local", "dlpm")
        workers = [stack.enter_context(server(*lost))]
        workers += [
            stack.enter_context(server("emulate", "--port", 0, *lost[3:])) for _ in range(2)
        ]
        urls = [part for one in workers for part in ("--worker-url", one.address.split(",")[0])]
        flags = [] if fill_below is None else ["--set", f"d2lpm.fill_below={fill_below}"]
        flags += ["--set", "d2lpm.worker_quantum=400000"]  # as with ten times as many clients
        router = stack.enter_context(server("serve", "--port", 0, *urls, *flags))

        def count(when):
            for number, url in enumerate(urls[1::2]):
                counts[when, number] = finished(url)

        def lost_and_back():
            workers[0].process.kill()
            workers[0].process.wait()
            wait_for(lambda: not is_up(router.address))
            stack.enter_context(server(*lost))
            wait_for(lambda: is_up(router.address))  # the router looks every 5 s
            count("back")

        asyncio.run(
            traffic(router.address, [(BEFORE_S, lost_and_back), (AFTER_S, lambda: count("end"))])
        )
    return [counts["end", number] - counts["back", number] for number in range(3)]


@pytest.mark.slow
@pytest.mark.alone
def test_a_returned_worker_gets_its_share_immediately():
    back, *others = shares_after_a_restart(None)
    assert back > max(others) / 5
    back, *others = shares_after_a_restart(0)
    assert back < max(others) / 10  # Algorithm 2 as published
