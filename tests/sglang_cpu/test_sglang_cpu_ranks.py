"""Test two data-parallel ranks of a real SGLang server on the CPU under a flood."""

import asyncio
import os
from collections import Counter
from itertools import count

import pytest
from aiohttp import ClientSession, ClientTimeout

from fairbench_load.plugin_config import plugin_config
from fairbench_load.server_facts import fetch_report
from tests.sglang_cpu.sglang_cpu_server import sglang_server, why_absent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]
FLAGS = ("--dp-size=2", "--max-running-requests=2", "--max-total-tokens=8000")
CORES = f"0|{min(1, os.cpu_count() - 1)}"  # SGLang needs to know the cores of each rank
PROMPT, OUTPUT, SECONDS = 48, 64, 30


async def flooded(url):
    """Return each client's weighted tokens. All of the light client's requests are at rank 0."""
    got, numbers = Counter(), count()

    async def client(session, name, rank):
        while True:
            first = 16 + next(numbers) % 1900
            body = {
                "input_ids": list(range(first, first + PROMPT)),
                "routing_key": name,
                "sampling_params": {"max_new_tokens": OUTPUT, "ignore_eos": True},
            }
            if rank is not None:
                body["routed_dp_rank"] = rank
            async with session.post(f"{url}/generate", json=body) as answer:
                answer.raise_for_status()
                await answer.read()
            got[name] += PROMPT + 2 * OUTPUT

    async with ClientSession(timeout=ClientTimeout(total=None)) as session:
        loops = [asyncio.create_task(client(session, "heavy", None)) for _ in range(40)]
        loops += [asyncio.create_task(client(session, "light", 0)) for _ in range(8)]
        await asyncio.sleep(SECONDS)
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
    return got


def test_a_client_at_one_rank_gets_its_share_of_the_server(tmp_path):
    """Without the shared account, the light client would get a quarter."""
    environment = plugin_config("vtc", {}).environment() | {"SGLANG_CPU_OMP_THREADS_BIND": CORES}
    with sglang_server(tmp_path, *FLAGS, environment=environment) as server:
        got = asyncio.run(flooded(server.url))
        reports = fetch_report(server.url)
    assert len(reports) == 2
    assert got["light"] > 0.3 * got.total()
    balances = [report.clients["heavy"]["balance"] for report in reports]
    assert balances[0] == pytest.approx(balances[1], rel=0.1)
