"""Test two data-parallel ranks of a real vLLM server on the CPU under a flood."""

import asyncio
from collections import Counter

import pytest
from aiohttp import ClientSession, ClientTimeout
from prometheus_client.parser import text_string_to_metric_families

from fairbench_load.plugin_config import plugin_config
from tests.vllm_cpu.shares import ask
from tests.vllm_cpu.vllm_cpu_server import WHY_ABSENT, stock_vllm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_ABSENT), reason=WHY_ABSENT or "present"),
]
FLAGS = ("--data-parallel-size=2", "--max-num-seqs=2")
FLAGS += ("--scheduler-cls=fairbench_engines.vllm.scheduler.FairScheduler",)
OUTPUT, SECONDS = 64, 60


async def flooded(url):
    """Return tokens by client, and the metrics. All of the light client's requests are at rank 0.

    The light client has so many connections that some of its requests always wait.
    """
    got = Counter()

    async def client(session, name, headers):
        while True:
            got[name] += await ask(session, url, name, "m", OUTPUT, headers=headers)

    async with ClientSession(timeout=ClientTimeout(total=None)) as session:
        loops = [asyncio.create_task(client(session, "heavy", {})) for _ in range(40)]
        pinned = {"X-data-parallel-rank": "0"}
        loops += [asyncio.create_task(client(session, "light", pinned)) for _ in range(8)]
        await asyncio.sleep(SECONDS)
        async with session.get(f"{url}/metrics") as answer:
            page = await answer.text()
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
    return got, page


def test_a_client_at_one_rank_gets_its_share_of_the_server(tmp_path):
    """Without the shared account, the light client would get a quarter."""
    environment = plugin_config("vtc", {}).environment()
    with stock_vllm(
        tmp_path, *FLAGS, environment=environment, module="fairbench_engines.vllm"
    ) as url:
        got, page = asyncio.run(flooded(url))
    assert got["light"] > 0.3 * got.total()
    told = {
        (sample.name.removeprefix("fairbench_rank_charges_"), sample.labels["rank"]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith("fairbench_rank_charges_")
    }
    for rank, other in (("0", "1"), ("1", "0")):
        assert told["received", rank] == pytest.approx(told["sent", other], rel=0.2)
        assert told["sent", rank] > 0
