"""Test that a router with KV events follows prefixes to the workers that hold them."""

import asyncio
from array import array
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from fairbench_emulator.kv_events import Publisher
from fairbench_load import headers
from fairbench_load.kv_event_wire import AllBlocksCleared, BlockRemoved, BlockStored
from fairbench_load.processes.addresses import WorkerAddress
from tests.serve.live_router import GENERATE, PATHS, Worker, router_before, until

IDS = list(range(1000, 1640))
HASHES = list(range(len(IDS)))
STORED = BlockStored(HASHES, None, IDS, 1, None, "GPU")
BODY = {**PATHS[GENERATE], "input_ids": IDS}


@asynccontextmanager
async def publishing_cluster(count, router):
    """Run workers with publishers of KV events, and a router that follows them."""
    async with AsyncExitStack() as stack:
        workers, publishers, addresses = [], [], []
        for _ in range(count):
            worker, publisher = Worker(), Publisher("127.0.0.1", 0, 0)
            await worker.start()
            stack.push_async_callback(worker.stop)
            stack.push_async_callback(publisher.close)
            workers.append(worker)
            publishers.append(publisher)
            addresses.append(
                WorkerAddress(worker.url, publisher.endpoint, publisher.replay_endpoint)
            )
        under_test = await stack.enter_async_context(router_before(addresses, router=router))
        yield under_test, publishers


async def worker_of(under_test):
    async with under_test.post(GENERATE, BODY) as answer:
        assert answer.status == 200
        return int(answer.headers[headers.WORKER])


@pytest.mark.parametrize("news", [[BlockRemoved(HASHES, "GPU")], [AllBlocksCleared()]])
def test_an_evicted_prefix_attracts_no_more_requests(news):
    async def run():
        async with publishing_cluster(2, "d2lpm") as (under_test, publishers):
            home = await worker_of(under_test)
            assert [await worker_of(under_test) for _ in range(3)] == [home] * 3
            told = heard_of(under_test)
            publishers[home].publish([STORED])
            publishers[home].publish(news)
            await until(lambda: told)
            assert told == [(home, tuple(IDS), len(IDS))]
            assert await worker_of(under_test) != home

    asyncio.run(run())


def heard_of(under_test):
    """Return a list of the evictions that the router is told of: worker, ids, tokens."""
    told, router = [], under_test.proxy.dispatcher.router
    tell = router.on_evict

    def on_evict(prefix, tokens, worker, now_s):
        if not prefix[-1].key.startswith("output"):
            ids = array("I", b"".join(segment.key.encode("latin-1") for segment in prefix))
            told.append((worker, tuple(ids), tokens))
        tell(prefix, tokens, worker, now_s)

    router.on_evict = on_evict
    return told


def test_gaps_show_in_the_metrics():
    async def run():
        async with publishing_cluster(1, "d2lpm") as (under_test, (publisher,)):
            publisher._next_seq += 2  # two messages that no subscriber receives
            publisher.publish([STORED])
            losses = 'fairbench_kv_event_losses{worker="0"}'
            async with asyncio.timeout(120):
                while not await under_test.metric(losses):
                    publisher.publish([])  # once the subscription is active
                    await asyncio.sleep(0.02)
            assert await under_test.metric('fairbench_kv_event_gaps{worker="0"}') >= 1

    asyncio.run(run())


def test_routers_that_use_no_cache_follow_no_events():
    async def run():
        async with publishing_cluster(1, "round-robin") as (under_test, _):
            assert await under_test.metric("fairbench_kv_event_gaps{") == 0
            assert await worker_of(under_test) == 0

    asyncio.run(run())
