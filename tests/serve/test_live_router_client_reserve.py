"""Test serve's default limits: a client that takes all it can, and one that comes later."""

import asyncio
import tracemalloc
from types import SimpleNamespace

import pytest

from fairbench.core import Request, Segment
from fairbench.schedulers.base import Setup
from fairbench.schedulers.gateway.client_limits import ClientLimits
from fairbench.schedulers.gateway.registry import GatewayParams
from fairbench_load import headers
from tests.serve.live_router import CHAT, COMPLETIONS, GENERATE, PATHS, cluster, streamed, until

SIZE = {"max_total_num_tokens": 400_000, "max_running_requests": 8}
LONG = {**streamed(GENERATE), "sampling_params": {"max_new_tokens": 6_000}}


async def stream(under_test, client, path=GENERATE, body=LONG):
    async with under_test.post(path, body, **{headers.CLIENT: client}) as answer:
        await answer.read()
        return answer.status


def flooded(requests, workers=1, info=SIZE, victims=1, path=GENERATE, body=LONG, **router):
    """Return how many requests of a flood, and of a later victim, are at the workers.

    The flood's requests have this path and body.
    """

    async def run():
        async with cluster(workers, held_at=0, info=info, router=router) as (under_test, at):
            flood = [
                asyncio.create_task(stream(under_test, "hog", path, body)) for _ in range(requests)
            ]
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
    assert flooded(64, limits_clients=True, victims=8) == (6, 1)  # 2 slots / 1.25
    assert flooded(64, limits_clients=True, workers=2) == (12, 1)


def test_a_fifth_stays_free_with_any_gateway():
    settings = {"concurrency.requests": 1_000}
    for policy in ("vtc", "drr", "dlpm"):
        router = {"gateway": policy, "settings": settings, "limits_clients": True}
        assert flooded(64, **router) == (6, 1)


CHATS = {**streamed(CHAT), "max_tokens": None}
BUT_MAX = {name: value for name, value in streamed(CHAT).items() if name != "max_tokens"}


@pytest.mark.parametrize(
    ("path", "body", "reserved"),
    [
        (GENERATE, LONG, 6_100),
        (GENERATE, {**streamed(GENERATE), "sampling_params": {}}, 228),  # SGLang's default
        (COMPLETIONS, {**streamed(COMPLETIONS), "max_tokens": 4_000}, 4_004),
        (COMPLETIONS, {**streamed(COMPLETIONS), "max_tokens": 50, "prompt": "t" * 5_800}, 1_500),
        (CHAT, CHATS, 4_099),  # as much as SGLang reserves for an answer of any length
        (CHAT, {**BUT_MAX, "max_completion_tokens": 2_000}, 2_003),
        (CHAT, {**BUT_MAX, "max_completion_tokens": 1, "max_tokens": 2_000}, 2_003),
        (CHAT, {**streamed(CHAT), "max_tokens": 0}, 4_099),  # SGLang takes 0 for no limit
    ],
)
def test_a_fifth_of_the_memory_stays_free(path, body, reserved):
    """The memory is a little more than five of these requests need, so four may run."""
    info = {"max_total_num_tokens": 5 * reserved + 4}
    assert flooded(16, path=path, body=body, limits_clients=True, info=info) == (4, 1)


@pytest.mark.parametrize(
    "more", [{"ignore_eos": True}, {"logit_bias": {"2": -100}}, {"min_tokens": 5_000}], ids=list
)
def test_a_chat_that_forbids_its_end_reserves_all(more):
    body = {**CHATS, **more}
    flood = flooded(16, path=CHAT, body=body, limits_clients=True, info=SIZE)
    assert flood == (1, 1)


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


@pytest.mark.parametrize(
    ("limits", "gateway", "orders_by"),
    [(True, "vtc", "vtc"), (True, None, "fcfs"), (False, "vtc", "vtc"), (False, None, None)],
)
def test_default_limits_keep_the_gateway_of_the_operator(limits, gateway, orders_by):
    async def run():
        settings = {"concurrency.requests": 1_000} if gateway else {}
        router = {"gateway": gateway, "limits_clients": limits, "settings": settings}
        async with cluster(1, info=SIZE, router=router) as (under_test, _):
            ingress = under_test.proxy.dispatcher.ingress
            assert await stream(under_test, "a") == 200
            return None if ingress is None else ingress.queue._bands[0].scheduler.name

    assert asyncio.run(run()) == orders_by


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
        GatewayParams(client_memory=400_000, client_requests=64, client_reserve=0.25), setup
    )

    def come_and_go(names):
        for name in names:
            prompt = (Segment(f"prompt of {name}", 100),)
            request = Request(name, f"client-{name}", -1, 0, prompt, 100, 10, 0.0)
            assert limits.admits(request)
            limits.end_admitted(request, 5)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = come_and_go(range(20_000))
        after = come_and_go(range(20_000, 100_000))
    finally:
        tracemalloc.stop()
    assert after < 1.1 * before
