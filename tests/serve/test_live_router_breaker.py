"""Test a worker that fails what others serve: no answer is lost, and its traffic stops."""

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest

from fairbench_load import headers
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve import breaker
from fairbench_serve.breaker import Breakers, Refusals
from fairbench_serve.exchange import WorkerFailed
from fairbench_serve.ingress import AttemptFailure
from fairbench_serve.retries import Attempts, Tries
from tests.load.live_null_server import Fault, null_server
from tests.serve.live_router import (
    COMPLETIONS,
    GENERATE,
    PATHS,
    Worker,
    cluster,
    router_before,
    until,
)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_breaker_opens_and_pauses_longer_each_time_and_closes_after_a_probe():
    clock = Clock()
    breakers = Breakers(2, clock)
    assert [breakers.record_failure(1, "ann") for _ in range(3)] == [False, False, True]
    assert (breakers.is_open(0), breakers.is_open(1)) == (False, True)
    rests = []
    for _ in range(6):
        start = clock.now
        while breakers.probe() is None:
            clock.now += 0.5
        rests.append(clock.now - start)
        assert breakers.probe() is None, "one probe at a time"
        assert not breakers.record_failure(1, "ann"), "it was open already"
    assert rests == [5, 10, 20, 40, 60, 60]
    clock.now += 60
    assert breakers.probe() == 1
    assert breakers.record_success(1, "ann")
    assert not breakers.is_open(1)
    assert not breakers.record_success(1, "ann")


def test_a_breaker_that_has_closed_pauses_for_five_seconds_again():
    clock = Clock()
    breakers = Breakers(1, clock)
    for rest_s in (5, 10):  # the probe after the first rest fails, too
        for _ in range(3 if rest_s == 5 else 1):
            breakers.record_failure(0, "ann")
        clock.now += rest_s
        assert breakers.probe() == 0
    assert breakers.record_success(0, "ann")
    for _ in range(3):
        breakers.record_failure(0, "ann")
    clock.now += 4.9
    assert breakers.probe() is None
    clock.now += 0.1
    assert breakers.probe() == 0


def test_only_failures_in_a_row_count_and_only_a_probe_closes():
    breakers = Breakers(1, Clock())
    for _ in range(5):
        assert not breakers.record_failure(0, "ann")
        assert not breakers.record_failure(0, "ann")
        assert not breakers.record_success(0, "ann")
    for _ in range(3):
        breakers.record_failure(0, "ann")
    assert not breakers.record_success(0, "ann")  # a request from before the breaker opened
    assert breakers.is_open(0)


@pytest.mark.parametrize(
    ("failing", "served", "after_s", "opens"),
    [
        (["eve"] * 9, ["ann"], 4, False),  # the requests of eve may be the cause
        (["eve"] * 9, ["ann"], 6, True),  # it is unknown whether ann would be served now
        (["eve"] * 9, ["eve"], 4, True),
        (["eve", "bob", "eve"], ["ann"], 4, True),
        (["eve"] * 9, [], 4, True),
    ],
)
def test_one_client_opens_no_breaker_of_a_worker_that_serves_others(
    failing, served, after_s, opens
):
    clock = Clock()
    breakers = Breakers(2, clock)
    breakers.record_success(1, "bob")  # at another worker
    for client in served:
        breakers.record_success(0, client)
    clock.now += after_s
    found = [breakers.record_failure(0, client) for client in failing]
    assert any(found) == opens
    assert breakers.is_open(0) == opens


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_client_whose_requests_fail_at_a_worker_takes_it_from_nobody_else(code):
    class Choosy(Worker):
        async def answer(self, request):
            self.status = code if "[bad]" in await request.text() else 200
            return await super().answer(request)

    async def run():
        async with AsyncExitStack() as stack:
            workers = [Choosy(), Worker()]
            for worker in workers:
                await worker.start()
                stack.push_async_callback(worker.stop)
            under_test = await stack.enter_async_context(router_before(workers))
            bad = {**PATHS[COMPLETIONS], "prompt": "[bad]"}
            for _ in range(6):
                for client, body in (("ann", None), ("ann", None), *[("eve", bad)] * 5):
                    sent = {headers.CLIENT: client}
                    async with under_test.post(COMPLETIONS, body, **sent) as answer:
                        assert answer.status == 200
            return under_test.up

    assert asyncio.run(run()) == {0, 1}


def test_an_inconclusive_probe_is_repeated():
    clock = Clock()
    breakers = Breakers(1, clock)
    for _ in range(3):
        breakers.record_failure(0, "ann")
    clock.now = 5
    assert breakers.probe() == 0
    breakers.undecided(0)
    assert breakers.probe() == 0


async def statuses(under_test, requests, at_once=8):
    """Send requests, ``at_once`` in parallel, each with its own prompt. Return (status, worker)."""
    room = asyncio.Semaphore(at_once)

    async def one(number):
        body = {**PATHS[GENERATE], "input_ids": [number] * 64}
        sent = {headers.CLIENT: f"client-{number % 5}"}
        async with room, under_test.post(GENERATE, body, **sent) as answer:
            await answer.read()
            return answer.status, answer.headers.get(headers.WORKER)

    return await asyncio.gather(*(one(number) for number in range(requests)))


OF_ROUTERS = [("d2lpm", 500), ("round-robin", 503)]
OF_REQUESTS = (400, 404, 413, 422)  # these concern the kind of request, not the worker
OF_STATUSES = (*OF_REQUESTS, 401, 403, 408, 429, 500, 501, 503, 507, 529, 599)


@pytest.mark.parametrize(
    ("router", "status"), [*OF_ROUTERS, *(("least-loaded", status) for status in OF_STATUSES)]
)
def test_a_worker_that_fails_everything_costs_no_answers_and_gets_little_traffic(router, status):
    """The worker answers errors at once while healthy, so it is always the least loaded."""
    requests = 100

    async def run():
        async with cluster(4, router={"router": router}) as (under_test, workers):
            workers[2].status = status
            served = await statuses(under_test, requests)
            is_up = await under_test.metric('fairbench_worker_up{worker="2"}')
            assert is_up == (status in OF_REQUESTS)
            return [one for one, _ in served], len(workers[2].seen)

    found, reached = asyncio.run(run())
    assert found == [200] * requests
    assert reached <= 3 + 8  # others are on their way until the third is reported


def test_streams_that_begin_with_an_error_are_tried_elsewhere_and_count_as_failures():
    """SGLang answers 200 to a stream before it knows whether it can serve the request.

    The error has the code 400. It concerns this kind of request, and the worker stays up for
    others.
    """

    async def run():
        async with cluster(2) as (under_test, workers):
            workers[0].streamed_error = True
            found = []
            for number in range(20):
                body = {**PATHS[GENERATE], "input_ids": [number] * 64, "stream": True}
                async with under_test.post(GENERATE, body) as answer:
                    said = await answer.read()
                    found.append((answer.status, answer.headers[headers.WORKER], b"error" in said))
            return found, under_test.up, len(workers[0].seen)

    assert asyncio.run(run()) == ([(200, "1", False)] * 20, {0, 1}, 3)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429])
def test_a_request_that_fails_at_two_workers_blames_its_client(status):
    """The client gets a worker's error, and no worker is blamed.

    The third worker is tried only while its last request has not failed.
    """

    async def run():
        async with cluster(3, status=status) as (under_test, workers):
            served = await statuses(under_test, 30)
            return {one for one, _ in served}, under_test.up, sum(len(w.seen) for w in workers)

    found, up, reached = asyncio.run(run())
    assert (found, up) == ({status}, {0, 1, 2})
    assert 60 <= reached <= 60 + 8  # at most one more for each of the first requests


def test_a_success_in_between_clears_a_worker():
    """Otherwise, a client could have a worker ejected by requests that only this worker refuses."""

    async def run():
        async with cluster(2) as (under_test, workers):
            for status in (400, 400, 200) * 4:
                workers[0].status = status
                reached = len(workers[0].seen)
                while len(workers[0].seen) == reached:
                    await statuses(under_test, 1)
            return under_test.up

    assert asyncio.run(run()) == {0, 1}


def test_one_request_finds_out_that_a_worker_serves_again(monkeypatch):
    monkeypatch.setattr(breaker, "FIRST_REST_S", 0.05)

    async def run():
        async with cluster(2) as (under_test, workers):
            workers[0].status = 500
            await statuses(under_test, 20)
            assert under_test.up == {1}
            workers[0].status = 200
            reached, served = len(workers[0].seen), []
            async with asyncio.timeout(120):  # later probes come twice as late
                while under_test.up == {1}:
                    served += await statuses(under_test, 1)
                    await asyncio.sleep(0.01)
            probes = len(workers[0].seen) - reached
            return under_test.up, served + await statuses(under_test, 4), probes

    up, served, probes = asyncio.run(run())
    assert (up, probes) == ({0, 1}, 1)
    assert {status for status, _ in served} == {200}


def test_healthy_answers_do_not_bring_back_a_worker_that_fails(monkeypatch):
    monkeypatch.setattr(breaker, "FIRST_REST_S", 600.0)

    async def run():
        async with cluster(2) as (under_test, workers):  # health is checked every 50 ms
            workers[0].status = 500
            await statuses(under_test, 20)
            reached = len(workers[0].seen)
            await asyncio.sleep(0.3)
            await statuses(under_test, 20)
            return under_test.up, len(workers[0].seen) - reached

    assert asyncio.run(run()) == ({1}, 0)


def test_requests_that_fail_everywhere_eject_no_worker():
    """Otherwise, one client's odd requests would take every worker from the others."""

    async def run():
        async with cluster(3, status=500) as (under_test, workers):
            served = await statuses(under_test, 30)
            up = under_test.up
            for worker in workers:
                worker.status = 200
            return {status for status, _ in served}, up, sum(len(w.seen) for w in workers)

    found, up, reached = asyncio.run(run())
    assert (found, up) == ({500}, {0, 1, 2})
    assert 60 <= reached <= 60 + 8  # two tries each, and three of the first ones


def test_the_only_worker_left_stays():
    async def run():
        async with cluster(2) as (under_test, workers):
            workers[0].status = 500
            await statuses(under_test, 20)
            assert under_test.up == {1}
            workers[1].status = 500
            await statuses(under_test, 20)
            return under_test.up

    assert asyncio.run(run()) == {1}


def test_requests_at_an_ejected_worker_continue():
    async def run():
        async with cluster(2, held_at=2) as (under_test, workers):
            body = {**PATHS[GENERATE], "stream": True}
            async with under_test.post(GENERATE, body) as answer:
                await answer.content.readany()
                bad = int(answer.headers[headers.WORKER])
                workers[bad].status = 500
                workers[1 - bad].held_at = None
                await statuses(under_test, 20)
                assert under_test.up == {1 - bad}
                workers[bad].released.set()
                return b"error" in await answer.read()

    assert asyncio.run(run()) is False


def test_a_connection_that_breaks_while_the_worker_is_healthy_is_tried_once_more():
    """The answer has begun, so the connection was not closed for being idle."""

    async def run():
        faults = dict.fromkeys((0, 2, 3), Fault("disconnect"))
        async with (
            null_server(faults=lambda number, _: faults.get(number)) as server,
            router_before([server], health_interval_s=1000.0) as under_test,
        ):
            found = []
            for _ in range(2):
                body = {**PATHS[GENERATE], "stream": True}
                async with under_test.post(GENERATE, body) as answer:
                    await answer.read()
                    found.append((answer.status, answer.headers[headers.WORKER]))
            await until(lambda: not under_test.proxy.dispatcher.under_way)
            return found, server.seen

    assert asyncio.run(run()) == ([(200, "0"), (502, "0")], 4)


class Impatient(asyncio.Protocol):
    """A server that serves one request per connection, and breaks it under the next one.

    A server does the same if its idle timeout ends while a request is on its way.
    """

    def connection_made(self, transport):
        self.transport, self.has_served = transport, False

    def data_received(self, data):
        if self.has_served:
            self.transport.abort()
        elif data.startswith(b"GET") or data.endswith(b"}"):  # the bodies of the others follow
            self.has_served = data.endswith(b"}")
            body = b'{"text": "x"}'
            head = (
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            )
            self.transport.write(head % len(body) + body)


def test_kept_connections_that_workers_have_closed_cost_no_answer():
    """Each request meets a closed connection, but no worker is blamed, however many there are."""

    async def run():
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(Impatient, "127.0.0.1", 0) for _ in range(2)]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        workers = [WorkerAddress(f"http://127.0.0.1:{port}") for port in ports]
        async with router_before(workers, health_interval_s=1000.0) as under_test:
            found = [status for _ in range(3) for status, _ in await statuses(under_test, 16)]
            up = under_test.up
        for server in servers:
            server.close()
        return found, up

    assert asyncio.run(run()) == ([200] * 48, {0, 1})


def test_a_worker_that_serves_the_retry_of_its_own_failure_is_not_blamed():
    breakers, refusals, ejected = Breakers(2, Clock()), Refusals(Clock()), []
    attempts = Attempts(
        *((), None, SimpleNamespace(up={0, 1}, eject=ejected.append), None),
        *(breakers, refusals, None, None),
    )
    failed = WorkerFailed(0, AttemptFailure.BROKE)
    tries = Tries(7, 10, "ann", (), has_key=False, failures=[failed])
    attempts._judge(0, tries)
    # Two failures that worker 1 makes good are not three in a row.
    for _ in range(2):
        attempts._judge(1, tries)
        assert ejected == []
    attempts._judge(1, tries)
    assert ejected == [0]
