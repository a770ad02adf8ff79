"""Test that the router prevents harm that one client can do to a real SGLang server."""

import asyncio

import pytest

from fairbench_load.plugin_config import plugin_config
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_load.server_facts import fetch_report
from tests.serve.live_router import GENERATE, Worker, router_before, until
from tests.sglang_cpu.sglang_cpu_server import sglang_server, why_absent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

FLAGS = ("--max-total-tokens=8000", "--max-running-requests=8")
DEADLY = {"input_ids": [5, 60_000]}  # ids outside of a vocabulary of 2,048
PREFIXES = "0123456789abcdef"


async def answer_of(under_test, body):
    async with under_test.post(GENERATE, body) as answer:
        return answer.status, await answer.json()


async def refused(url):
    """Check that no request that would end the server reaches it. The server reports its ids."""
    async with router_before([WorkerAddress(url)]) as under_test:
        for body in (DEADLY, {"input_ids": [5], "sampling_params": {"stop_token_ids": [60_000]}}):
            status, said = await answer_of(under_test, body)
            assert (status, "0 to 2047" in said["error"]["message"]) == (400, True)
        harmless = {
            "input_ids": [5, 6],
            "sampling_params": {"max_new_tokens": 3, "ignore_eos": True},
        }
        status, said = await answer_of(under_test, harmless)
        assert (status, said["meta_info"]["finish_reason"]["type"]) == (200, "length")


async def not_aborted(url):
    """Check that a client cannot abort another's request by using prefixes of its id.

    SGLang aborts by prefix when a client leaves.
    """
    async with router_before([WorkerAddress(url)]) as under_test:
        sampling = {"max_new_tokens": 300, "ignore_eos": True}
        modest = [
            asyncio.create_task(
                answer_of(under_test, {"text": "w5 w6", "sampling_params": sampling})
            )
            for _ in range(4)
        ]
        await until(lambda: under_test.proxy.dispatcher.under_way == 4, timeout_s=60)
        for prefix in PREFIXES:
            body = {"text": "w7", "rid": prefix, "sampling_params": sampling}
            gone = asyncio.create_task(answer_of(under_test, body))
            await asyncio.sleep(0.2)
            gone.cancel()
        for status, said in await asyncio.gather(*modest):
            assert (status, said["meta_info"]["completion_tokens"]) == (200, 300)


async def killed_once(url):
    """Check that the request, if let through, ends the server and is not retried elsewhere."""
    other = Worker()
    await other.start()
    try:
        settings = {"router": "least-loaded", "vocab_size": 10**6}
        async with router_before([WorkerAddress(url), other], **settings) as under_test:
            other.healthy = False
            await until(lambda: under_test.up == {0})
            asked = asyncio.create_task(answer_of(under_test, DEADLY))
            await until(lambda: under_test.proxy.dispatcher.under_way == 1)
            other.healthy = True
            status, said = await asked
            assert (status, said["error"]["type"]) == (502, "server_error")
            assert other.seen == []
            status, _ = await answer_of(under_test, {"input_ids": [5]})
            assert (status, len(other.seen)) == (200, 1)
    finally:
        await other.stop()


def test_one_client_harms_neither_the_server_nor_the_others(tmp_path):
    environment = plugin_config("dlpm", {}).environment()
    with sglang_server(tmp_path, *FLAGS, environment=environment) as server:
        asyncio.run(refused(server.url))
        asyncio.run(not_aborted(server.url))
        (report,) = fetch_report(server.url)
        assert report.vocab_size == 2048
        asyncio.run(killed_once(server.url))
