"""Test a gateway before a stock vLLM server that one client floods.

Run in the environment of install.sh; each test takes minutes. gateway_cost.py measures the cost.
"""

import asyncio

import pytest
from aiohttp import ClientSession

from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve.worker_info import most_running
from tests.serve.live_router import COMPLETIONS, Flood, router_before
from tests.vllm_cpu.vllm_cpu_server import WHY_ABSENT, stock_vllm

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_ABSENT), reason=WHY_ABSENT)]

AT_ONCE = 4
FLOOD, MODEST = 24, 6  # number of requests that each client has waiting or running
PROMPT, OUTPUT = 48, 16
REQUESTS = 80
SAMPLING = {"model": "m", "max_tokens": OUTPUT, "min_tokens": OUTPUT}
POLICIES = {None: {}, "vtc": {}, "dlpm": {"dlpm.quantum": PROMPT + 2 * OUTPUT}}


async def most_at(url):
    async with ClientSession() as session:
        return await most_running(session, [WorkerAddress(url)])


async def shared(url, policy, seed):
    """Return requests served by client, and how often a slot was empty."""
    clients = {"flood": FLOOD, "modest": MODEST}
    flood = Flood(clients, REQUESTS, AT_ONCE, PROMPT, 1900, seed, COMPLETIONS)
    settings = {"gateway": policy, "settings": POLICIES[policy]}
    async with router_before([WorkerAddress(url)], **settings) as under_test:
        return await flood.against(under_test, SAMPLING)


def test_the_modest_client_gets_its_share_of_a_stock_server(tmp_path):
    """The gateway dispatches as many as vLLM reports to run, which needs its development mode."""
    share = {}
    development = {"VLLM_SERVER_DEV_MODE": "1"}
    with stock_vllm(tmp_path, f"--max-num-seqs={AT_ONCE}", environment=development) as url:
        most = None
        # the first time, vLLM examines its whole machine, which takes long on a busy one
        for _ in range(20):
            most = most or asyncio.run(most_at(url))
        assert most == AT_ONCE
        for seed, policy in enumerate(POLICIES):
            had, idle = asyncio.run(shared(url, policy, seed))
            share[policy] = had["modest"] / had.total()
            assert idle == 0
    assert share[None] < 0.6 / 2
    assert min(share["vtc"], share["dlpm"]) >= 0.9 / 2
