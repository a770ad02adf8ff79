"""Test a gateway before a stock SGLang server that one client floods.

    python -m tests.sglang_cpu.test_sglang_cpu_gateway DIR

prints the shares and the throughput of each policy, in rounds, because machines vary.
"""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from fairbench_load.processes.addresses import WorkerAddress
from tests.serve.live_router import Flood, router_before
from tests.sglang_cpu.sglang_cpu_server import sglang_server, why_absent

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_absent()), reason=why_absent())]

AT_ONCE = 4
STOCK = f"--max-running-requests={AT_ONCE}", "--max-total-tokens=8000"
FLOOD, MODEST = 24, 6  # number of requests that each client has waiting or running
PROMPT, OUTPUT = 64, 32
REQUESTS = 80
POLICIES = {None: {}, "vtc": {}, "dlpm": {"dlpm.quantum": PROMPT + 2 * OUTPUT}}


async def shared(url, policy, seed):
    """Return requests served by client, the duration, and how often a slot was empty."""
    settings = {"gateway": policy, "settings": POLICIES[policy]}
    sampling = {"max_new_tokens": OUTPUT, "ignore_eos": True}
    clients = {"flood": FLOOD, "modest": MODEST}
    flood = Flood(clients, REQUESTS, AT_ONCE, prompt=PROMPT, vocab=1900, seed=seed)
    async with router_before([WorkerAddress(url)], **settings) as under_test:
        begun_s = time.monotonic()
        had, idle = await flood.against(under_test, sampling)
        return had, time.monotonic() - begun_s, idle


def test_the_modest_client_gets_its_share_of_a_stock_server(tmp_path):
    with sglang_server(tmp_path, *STOCK) as server:
        share = {}
        for seed, policy in enumerate(POLICIES):
            had, _, idle = asyncio.run(shared(server.url, policy, seed))
            share[policy] = had["modest"] / had.total()
            assert idle == 0
    assert share[None] < 0.6 / 2
    assert min(share["vtc"], share["dlpm"]) >= 0.9 / 2


def main(folder):
    """Print a line for each policy and round."""
    with sglang_server(folder, *STOCK) as server:
        asyncio.run(shared(server.url, None, 99))  # warms up
        for seed in range(3):
            for policy in POLICIES:
                had, took_s, idle = asyncio.run(shared(server.url, policy, seed))
                share = had["modest"] / had.total()
                speed = (REQUESTS + FLOOD + MODEST - 1) * OUTPUT / took_s
                print(
                    f"round {seed + 1}, gateway {policy or 'none'}: modest {share:.3f}, "
                    f"{speed:.1f} output tok/s, places left empty {idle} times",
                    flush=True,
                )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
