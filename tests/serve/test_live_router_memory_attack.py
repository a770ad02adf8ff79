"""Test that one client's long answers leave memory for another client's first token."""

import asyncio

import pytest
from aiohttp import ClientSession, TCPConnector

from fairbench_load import headers
from fairbench_load.processes.addresses import WorkerAddress
from tests.emulator.live_emulator import running
from tests.serve.live_router import CHAT, COMPLETIONS, GENERATE, router_before, streamed, until

LOCALS = {"vtc": "vtc", "fair-finish": "dlpm-hold", "d2lpm": "dlpm"}
ROUTERS = {"vtc": "client-round-robin"}
SHORT = {**streamed(COMPLETIONS), "max_tokens": 16}
TOKENS = [number % 1_000 for number in range(1_500)]
ATTACKS = {
    "300 streams": (300, COMPLETIONS, {**streamed(COMPLETIONS), "max_tokens": 6_000}),
    "100 prompts": (100, COMPLETIONS, {"prompt": TOKENS, "max_tokens": 6_000}),
    "300 chats": (300, CHAT, {**streamed(CHAT), "max_tokens": 16_000}),
    "300 answers in one piece": (
        300,
        GENERATE,
        {"text": "once", "sampling_params": {"max_new_tokens": 4_096, "ignore_eos": True}},
    ),
}


async def victim_beside(local, number, path, body, **settings):
    """Return the used and reserved share of memory beside the attacker's requests.

    Also return how many of these ended before a later client's answer.
    """
    async with (
        running(asyncio.get_running_loop(), local=local, time_scale=10.0) as (emulator, session),
        router_before([WorkerAddress(str(session._base_url).rstrip("/"))], **settings) as router,
        ClientSession(router.url, connector=TCPConnector(limit=0)) as many,
    ):

        async def read(client, path, body):
            shown = {headers.CLIENT: client}
            async with many.post(path, json=body, headers=shown) as answer:
                return await answer.read()

        attack = [asyncio.create_task(read("hog", path, body)) for _ in range(number)]
        try:
            await until(lambda: router.proxy.dispatcher.under_way == number, 30)
            await asyncio.sleep(1.0)  # 10 s of the engine, in which it has computed all prompts
            worker = emulator.worker
            promised = worker.batch.context_tokens + worker.batch.reserved_tokens()
            if (share := promised / worker.limits.pool_tokens) > 1:
                return share, 0
            async with asyncio.timeout(30):
                assert b"[DONE]" in await read("victim", COMPLETIONS, SHORT)
            return share, sum(task.done() for task in attack)
        finally:
            for task in attack:
                task.cancel()
            await asyncio.gather(*attack, return_exceptions=True)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("scheduler", LOCALS)
def test_a_later_client_is_served_before_any_long_answer_has_ended(scheduler, attack):
    router = {"router": ROUTERS.get(scheduler, scheduler), "limits_clients": True}
    flood = victim_beside(LOCALS[scheduler], *ATTACKS[attack], **router)
    share, ended = asyncio.run(flood)
    assert 0.2 < share < 0.81
    assert not ended


@pytest.mark.slow
def test_without_the_limit_the_engine_promises_more_memory_than_it_has():
    """The attack of the test above works."""
    flood = victim_beside("vtc", *ATTACKS["300 streams"], router="round-robin")
    assert asyncio.run(flood)[0] > 2
