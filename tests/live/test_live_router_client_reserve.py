"""Test serve's default limits: a client that takes all it can, and one that comes later."""

import asyncio
import tracemalloc
from types import SimpleNamespace

import pytest

from fairbench.core import Request, Segment
from fairbench.live import headers
from fairbench.schedulers.gateway.client_limits import ClientLimits
from fairbench.schedulers.gateway.registry import GatewayParams
from fairbench.schedulers.setup import Setup
from tests.live.live_router import COMPLETIONS, GENERATE, PATHS, cluster, streamed, until

SIZE = {"max_total_num_tokens": 40_000, "max_running_requests": 8}
LONG = {**streamed(GENERATE), "sampling_params": {"max_new_tokens": 6_000}}


async def stream(under_test, client):
    async with under_test.post(GENERATE, LONG, **{headers.CLIENT: client}) as answer:
        await answer.read()
        return answer.status


def flooded(requests, workers=1, info=SIZE, victims=1, **router):
    """Return the numbers of requests at the workers: of a flood, and of a later victim."""

    async def run():
        async with cluster(workers, held_at=0, info=info, router=router) as (under_test, at):
            flood = [asyncio.create_task(stream(under_test, "hog")) for _ in range(requests)]
            await until(lambda: under_test.proxy.dispatcher.under_way == requests)
            flights = under_test.proxy.dispatcher.flights.values()
            hogs = sum(map(len, flights))
            after = [asyncio.create_task(stream(under_test, "victim")) for _ in range(victims)]
            await until(lambda: under_test.proxy.dispatcher.under_way == requests + victims)
            both = sum(map(len, flights))
            for one in at:
                one.released.set()
            assert await asyncio.gather(*flood, *after) == [200] * (requests + victims)
            return hogs, both - hogs

    return asyncio.run(run())


def test_a_fifth_of_the_slots_stays_free_for_later_clients():
    assert flooded(64, limits_clients=True) == (6, 1)  # 8 slots / 1.25
    assert flooded(64, limits_clients=True, victims=8) == (6, 3)  # 8 slots / (1 + 1 + 0.25)
    assert flooded(64, limits_clients=True, workers=2) == (12, 1)


def test_a_fifth_stays_free_with_any_gateway():
    settings = {"concurrency.requests": 1_000}
    for policy in ("vtc", "drr", "dlpm"):
        router = {"gateway": policy, "settings": settings, "limits_clients": True}
        assert flooded(64, **router) == (6, 1)


def test_a_fifth_of_the_tokens_stays_free():
    """Each request counts a prompt of 100 tokens and, until outputs are known, no output."""
    info = {"max_total_num_tokens": 1_000}
    assert flooded(64, limits_clients=True, info=info)[0] <= 8
    assert flooded(64, limits_clients=True, info=info)[1] == 1


def test_several_routers_before_the_same_workers_would_each_see_only_their_own_clients():
    peers = {"peers": ("http://127.0.0.1:9",), "peer_key": "among routers", "gateway": "vtc"}
    settings = {"concurrency.requests": 1_000}
    assert flooded(64, limits_clients=True, settings=settings, **peers) == (64, 1)


def test_without_the_reserve_or_a_known_size_all_requests_go():
    assert flooded(64) == (64, 1)
    assert flooded(64, limits_clients=True, info={}) == (64, 1)


def test_a_setting_of_the_operator_takes_precedence():
    settings = {"gateway.client_requests": 4, "gateway.client_reserve": 1}
    router = {"gateway": "fcfs", "saturation": "none", "limits_clients": True}
    assert flooded(64, **router, settings=settings) == (2, 1)


def test_a_lone_client_is_served_at_any_limit():
    async def run():
        info = {"max_total_num_tokens": 10, "max_running_requests": 1}
        router = {"limits_clients": True}
        async with cluster(1, info=info, router=router) as (under_test, _):
            body = {**PATHS[COMPLETIONS], "prompt": "a"}
            sent = [under_test.post(COMPLETIONS, body) for _ in range(5)]
            return [answer.status for answer in await asyncio.gather(*sent)]

    assert asyncio.run(run()) == [200] * 5


@pytest.mark.slow
def test_a_hundred_thousand_names_take_no_more_memory_than_ten_thousand():
    fleet = SimpleNamespace(workers=lambda: [0])
    setup = Setup(weights={}, pool_tokens=400_000, fleet=fleet)
    limits = ClientLimits(
        GatewayParams(client_limit=400_000, client_requests=64, client_reserve=0.25), setup
    )

    def come_and_go(names):
        for name in names:
            prompt = (Segment(f"prompt of {name}", 100),)
            request = Request(name, f"client-{name}", -1, 0, prompt, 100, 10, 0.0)
            assert limits.enters(request)
            limits.over(request, 5)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = come_and_go(range(20_000))
        after = come_and_go(range(20_000, 100_000))
    finally:
        tracemalloc.stop()
    assert after < 1.1 * before
