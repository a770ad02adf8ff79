"""Test over HTTP that a router that queues requests loses none and lets no client harm another."""

import asyncio
from array import array

import pytest

from fairbench.schedulers.base import Router
from fairbench_serve import app
from fairbench_serve.retries import wait_until_sent
from tests.serve.live_router import GENERATE, cluster, until

CLIENT = "x-fairbench-client"


class OneEach(Router):
    """A router that allows one request at each worker at a time."""

    name = "one-each"
    holds = True

    def route(self, request, now_s):
        fleet = self.setup.fleet
        return next((w for w in fleet.workers() if not fleet.load(w).in_flight), None)

    def on_worker_leave(self, worker, now_s):
        """Do nothing, because the router is asked again about every request."""

    on_worker_join = on_worker_leave


@pytest.fixture
def holding(monkeypatch):
    monkeypatch.setattr(app, "build_router", lambda name, settings, workers: OneEach())


def run(test):
    asyncio.run(test())


def ask(under_test, client):
    async def answered():
        async with under_test.post(GENERATE, **{CLIENT: client}) as answer:
            await answer.read()
            return answer.status

    return asyncio.create_task(answered())


@pytest.mark.usefixtures("holding")
def test_requests_wait_at_the_router_and_are_sent_one_by_one():
    async def test():
        async with cluster(1, held_at=0) as (under_test, [worker]):
            asked = [ask(under_test, client) for client in "abc"]
            await until(lambda: under_test.proxy.dispatcher.under_way == 3 and worker.seen)
            await asyncio.sleep(0.1)
            assert len(worker.seen) == 1
            worker.released.set()
            assert await asyncio.gather(*asked) == [200, 200, 200]
            assert len(worker.seen) == 3
            assert under_test.proxy.dispatcher.under_way == 0

    run(test)


@pytest.mark.usefixtures("holding")
def test_a_client_that_leaves_the_queue_harms_no_other():
    async def test():
        async with cluster(1, held_at=0) as (under_test, [worker]):
            first = ask(under_test, "a")
            await until(lambda: len(worker.seen) == 1)
            gone = ask(under_test, "b")
            await until(lambda: under_test.proxy.dispatcher.under_way == 2)
            last = ask(under_test, "c")
            await until(lambda: under_test.proxy.dispatcher.under_way == 3)
            gone.cancel()
            await until(lambda: under_test.proxy.dispatcher.under_way == 2)
            worker.released.set()
            assert await asyncio.gather(first, last) == [200, 200]
            assert len(worker.seen) == 2
            assert under_test.proxy.dispatcher.under_way == 0

    run(test)


@pytest.mark.usefixtures("holding")
def test_a_client_that_leaves_at_dispatch_frees_its_slot():
    async def test():
        async with cluster(1, held_at=0) as (under_test, [worker]):
            dispatcher = under_test.proxy.dispatcher
            first = ask(under_test, "a")
            await until(lambda: len(worker.seen) == 1)
            made = dispatcher.make_request("b", array("I", [1]), 3, -1, 0)
            held = asyncio.create_task(wait_until_sent(dispatcher, made))
            await until(lambda: under_test.proxy.dispatcher.under_way == 2)
            last = ask(under_test, "c")
            await until(lambda: under_test.proxy.dispatcher.under_way == 3)
            held.cancel()  # the router learns of this only after the next event
            [flight] = dispatcher.flights[0]
            dispatcher.finish(flight, 0)
            worker.released.set()
            with pytest.raises(asyncio.CancelledError):
                await held
            assert await asyncio.gather(first, last) == [200, 200]
            assert under_test.proxy.dispatcher.under_way == 0

    run(test)


@pytest.mark.usefixtures("holding")
def test_queued_requests_go_elsewhere_when_the_worker_dies():
    async def test():
        async with cluster(2, held_at=0) as (under_test, workers):
            asked = [ask(under_test, client) for client in "abcd"]
            await until(lambda: under_test.proxy.dispatcher.under_way == 4)
            await until(lambda: all(len(worker.seen) == 1 for worker in workers))
            await workers[0].stop()
            workers[1].released.set()
            # one request had been sent there
            assert sorted(await asyncio.gather(*asked)) == [200, 200, 200, 502]
            assert under_test.proxy.dispatcher.under_way == 0

    run(test)
