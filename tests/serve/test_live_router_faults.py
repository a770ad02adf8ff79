"""Test faults of clients and workers, and how the router reacts."""

import asyncio
import json
import threading
from array import array
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientError, web

from fairbench_load import headers
from fairbench_load.http_server import LONG_BODY_BYTES
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve import app as service
from fairbench_serve import exchange
from tests.load.live_null_server import Fault, null_server
from tests.serve.live_router import (
    BEFORE,
    CHAT,
    COMPLETIONS,
    GENERATE,
    PATHS,
    Worker,
    cluster,
    events,
    payloads,
    router_before,
    streamed,
    until,
    whole,
)

ROUTERS = ["round-robin", "client-round-robin", "least-loaded", "d2lpm", "preble-e2"]
# 59 MB, far beyond any socket's buffers; comments are passed on after the first output
PADDING = [b'data: {"text": "a"}\n\n', *[b": padding\n\n" * 6_000] * 900]
NEVER = {"health_interval_s": 1000.0}  # except for the check at the start


async def read_start(answer, text):
    """Read the stream up to the given text."""
    data = b""
    while text not in data:
        data += await answer.content.readany()
    return data


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("path", PATHS)
def test_a_worker_that_dies_mid_stream_ends_that_stream_with_an_error(path, router):
    async def run():
        setting = {"router": router, **NEVER}
        async with cluster(2, router=setting, held_at=2) as (under_test, workers):
            async with under_test.post(path, streamed(path)) as answer:
                data = await read_start(answer, b"two")
                dead = int(answer.headers[headers.WORKER])
                await workers[dead].stop()
                data += await answer.read()
            *begun, error = payloads(data)
            assert begun == list(events(path, {}))[: 2 + BEFORE.get(path, 0)]
            assert error["error"]["type"] == "server_error"

            # The worker is out of rotation for every router, so all later requests use the other
            # worker.
            workers[1 - dead].held_at = None
            for _ in range(6):
                async with under_test.post(path) as answer:
                    assert answer.status == 200
                    assert answer.headers[headers.WORKER] == str(1 - dead)
            assert await under_test.metric(f'fairbench_worker_up{{worker="{dead}"}}') == 0
            assert await under_test.metric("fairbench_under_way") == 0
            await workers[dead].start()

    asyncio.run(run())


@pytest.mark.parametrize("router", ROUTERS)
def test_a_returned_worker_takes_part_again(router):
    async def run():
        async with cluster(2, router={"router": router}) as (under_test, workers):
            await workers[0].stop()
            await until(lambda: under_test.up == {1})
            assert await served_by(under_test, 4) == {"1"}
            await workers[0].start()
            await until(lambda: under_test.up == {0, 1})
            assert await served_by(under_test, 12) == {"0", "1"}

    asyncio.run(run())


async def served_by(under_test, requests):
    """Return the workers that served these requests. Clients and prompts all differ."""
    found = set()
    for number in range(requests):
        body = {**PATHS[GENERATE], "input_ids": [number] * 100}
        client = {headers.CLIENT: f"client-{number % 5}"}
        async with under_test.post(GENERATE, body, **client) as answer:
            assert answer.status == 200
            found.add(answer.headers[headers.WORKER])
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_requests_that_ran_at_a_dead_worker_are_not_repeated(stream):
    """Any of the running requests may have killed the worker.

    A request at the other worker is answered.
    """

    async def run():
        async with cluster(2, router=NEVER, held_at=0) as (under_test, workers):
            body = {**PATHS[GENERATE], "stream": stream}
            asked = [asyncio.create_task(status_of(under_test, body)) for _ in range(3)]
            await until(lambda: sum(len(worker.seen) for worker in workers) == 3)
            busy = 0 if len(workers[0].seen) == 2 else 1
            await workers[busy].stop()
            workers[1 - busy].released.set()
            assert sorted(await asyncio.gather(*asked)) == [200, 502, 502]
            assert len(workers[1 - busy].seen) == 1
            lost = 'fairbench_requests_total{client="default",outcome="lost"}'
            assert await under_test.metric(lost) == 2
            # Later requests never reach the dead worker, and are answered.
            assert await status_of(under_test, body) == 200
            await workers[busy].start()

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_requests_that_a_dead_worker_never_received_go_to_another_worker(stream):
    async def run():
        async with cluster(2, router=NEVER) as (under_test, workers):
            await workers[0].stop()  # no health check has failed yet
            body = {**PATHS[GENERATE], "stream": stream}
            assert [await status_of(under_test, body) for _ in range(3)] == [200] * 3
            retried = 'fairbench_requests_total{client="default",outcome="retried"}'
            assert await under_test.metric(retried) == 1
            await workers[0].start()

    asyncio.run(run())


async def status_of(under_test, body):
    async with under_test.post(GENERATE, body) as answer:
        await answer.read()
        return answer.status


async def fetch(under_test, body):
    async with under_test.post(GENERATE, body) as answer:
        assert answer.status == 200
        return await answer.read()


def test_without_workers_every_request_is_a_503_until_one_joins():
    async def run():
        async with cluster(1) as (under_test, (worker,)):
            await worker.stop()
            await until(lambda: not under_test.up)
            async with under_test.post(GENERATE) as answer:
                assert answer.status == 503
                assert int(answer.headers["Retry-After"]) > 0
                assert (await answer.json())["error"]["message"] == "no worker is available"
            assert await under_test.status("/health") == 503
            assert await under_test.status("/v1/models") == 503
            await worker.start()
            await until(lambda: under_test.up)
            assert await under_test.status("/health") == 200

    asyncio.run(run())


def test_missing_workers_do_not_delay_the_start_of_the_router():
    async def run():
        worker = Worker()
        await worker.start()
        await worker.stop()
        async with router_before([worker]) as under_test:
            assert not under_test.up
            await worker.start()
            await until(lambda: under_test.up)
            assert (await fetch(under_test, PATHS[GENERATE])) is not None
        await worker.stop()

    asyncio.run(run())


def test_a_worker_that_hangs_does_not_delay_the_start_of_the_router(monkeypatch):
    monkeypatch.setattr(service, "FIRST_CHECK_S", 0.1)

    async def run():
        workers = [Worker(healthy=None), Worker()]
        for worker in workers:
            await worker.start()
        async with asyncio.timeout(120), router_before(workers, health_timeout_s=1e6) as under_test:
            assert under_test.up == {1}
            assert await served_by(under_test, 4) == {"1"}
            workers[0].healthy = True
            workers[0].released.set()  # it answers only the very first check
            await until(lambda: under_test.up == {0, 1})
        for worker in workers:
            await worker.stop()

    asyncio.run(run())


def test_a_worker_that_hangs_does_not_keep_others_from_being_checked():
    async def run():
        async with cluster(2, router={"health_timeout_s": 1e6}) as (under_test, workers):
            workers[0].healthy = None
            workers[1].healthy = False
            await until(lambda: under_test.up == {0})
            workers[1].healthy = True
            await until(lambda: under_test.up == {0, 1})

    asyncio.run(run())


def test_a_worker_that_hangs_is_found_and_its_requests_go_elsewhere():
    async def run():
        setting = {"health_timeout_s": 0.2}
        async with cluster(2, router=setting, held_at=0) as (under_test, workers):
            asked = asyncio.create_task(fetch(under_test, PATHS[GENERATE]))
            await until(lambda: any(worker.seen for worker in workers))
            hanging = 0 if workers[0].seen else 1
            workers[1 - hanging].released.set()
            workers[hanging].healthy = None  # never answers
            assert json.loads(await asked) == whole(GENERATE)
            await until(lambda: under_test.up == {1 - hanging})

    asyncio.run(run())


def test_requests_at_a_worker_known_to_hang_go_elsewhere_immediately():
    """No request waits for another health check of the worker."""

    async def run():
        setting = {**NEVER, "health_timeout_s": 1e6}
        async with cluster(2, router=setting, held_at=0) as (under_test, workers):
            asked = asyncio.create_task(fetch(under_test, PATHS[GENERATE]))
            await until(lambda: any(worker.seen for worker in workers))
            hanging = 0 if workers[0].seen else 1
            workers[hanging].healthy = None
            workers[1 - hanging].released.set()
            under_test.proxy.dispatcher.leave(hanging)
            async with asyncio.timeout(120):
                assert json.loads(await asked) == whole(GENERATE)

    asyncio.run(run())


def test_a_worker_that_never_lists_its_models_is_ignored():
    async def run():
        setting = {"health_timeout_s": 0.2}
        async with cluster(2, router=setting, held_at=0) as (under_test, workers):
            workers[1].released.set()
            assert await under_test.status("/v1/models") == 200
            await until(lambda: under_test.up == {0, 1})  # it is healthy all the same

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_aborts_the_request_at_the_worker(stream):
    async def run():
        async with cluster(1, held_at=0) as (under_test, (worker,)):
            body = {**PATHS[GENERATE], "stream": stream}
            asked = asyncio.create_task(fetch(under_test, body))
            await until(lambda: worker.seen)
            asked.cancel()
            await until(lambda: worker.aborted)
            await until(lambda: not under_test.proxy.dispatcher.under_way)
            left = 'fairbench_requests_total{client="default",outcome="left"}'
            assert await under_test.metric(left) == 1
            assert under_test.up == {0}  # the worker was not at fault

    asyncio.run(run())


async def stalled(worker):
    """Return how many bytes the worker had sent when it stopped sending."""
    before = -1
    while before < worker.sent_bytes:
        before = worker.sent_bytes
        await asyncio.sleep(0.3)
    return before


def test_a_slow_reader_makes_the_worker_wait_and_still_gets_everything():
    async def run():
        async with (
            cluster(1, padding=PADDING) as (under_test, (worker,)),
            under_test.post(GENERATE, streamed(GENERATE)) as answer,
        ):
            await until(lambda: worker.sent_bytes)
            assert await stalled(worker) < sum(map(len, PADDING)) / 2
            total, end = 0, b""
            async for data in answer.content.iter_any():
                total, end = total + len(data), (end + data)[-100:]
            assert total > sum(map(len, PADDING))
            assert end.endswith(b"data: [DONE]\n\n")

    asyncio.run(run())


def test_a_stalled_reader_loses_its_slot(monkeypatch):
    monkeypatch.setattr(exchange, "STALLED_S", 0.1)

    async def run():
        async with (
            cluster(1, padding=PADDING) as (under_test, (worker,)),
            under_test.post(GENERATE, streamed(GENERATE)) as answer,
        ):
            await until(lambda: worker.aborted)
            await until(lambda: not under_test.proxy.dispatcher.under_way)
            with pytest.raises(ClientError):
                await answer.read()
            left = 'fairbench_requests_total{client="default",outcome="left"}'
            assert await under_test.metric(left) == 1

    asyncio.run(run())


def test_a_long_text_does_not_keep_others_waiting():
    """Tokenizing megabytes takes seconds."""
    begun, tokenised = threading.Event(), threading.Event()

    class SlowText:
        def ids(self, text):
            begun.set()
            assert tokenised.wait(60), "the router does nothing else meanwhile"
            return array("I", [1, 2, 3])

    async def run():
        async with cluster(1) as (under_test, _):
            under_test.proxy.text = SlowText()
            long = asyncio.create_task(fetch(under_test, {"text": "a" * LONG_BODY_BYTES}))
            await until(begun.is_set)
            assert await under_test.status("/health") == 200
            tokenised.set()
            assert json.loads(await long) == whole(GENERATE)

    asyncio.run(run())


def test_requests_beyond_max_queue_get_a_429():
    async def run():
        async with cluster(1, router={"max_queue": 2}, held_at=0) as (under_test, (worker,)):
            asked = [asyncio.create_task(fetch(under_test, PATHS[GENERATE])) for _ in range(2)]
            await until(lambda: len(worker.seen) == 2)
            async with under_test.post(GENERATE) as answer:
                assert answer.status == 429
                assert int(answer.headers["Retry-After"]) > 0
                assert (await answer.json())["error"]["type"] == "rate_limit_error"
            worker.released.set()
            await asyncio.gather(*asked)
            assert json.loads(await fetch(under_test, PATHS[GENERATE])) == whole(GENERATE)
            assert len(worker.seen) == 3

    asyncio.run(run())


def only_first(fault):
    """Return faults for only the first request of a null server."""
    return lambda number, _: fault if number == 0 else None


def test_a_workers_error_is_forwarded_unchanged():
    async def run():
        async with (
            null_server(faults=only_first(Fault("status", status=418))) as server,
            router_before([server]) as under_test,
            under_test.post(GENERATE, streamed(GENERATE)) as answer,
        ):
            assert answer.status == 418
            assert await answer.json() == {"error": {"message": "status 418"}}
            assert server.seen == 1
            assert under_test.up == {0}

    asyncio.run(run())


def test_an_error_in_a_stream_counts_as_an_error():
    async def run():
        faults = only_first(Fault("error", after=2))
        async with null_server(faults=faults) as server, router_before([server]) as under_test:
            async with under_test.post(GENERATE, streamed(GENERATE)) as answer:
                assert payloads(await answer.read())[-1]["error"]["message"] == "it broke"
            error = 'fairbench_requests_total{client="default",outcome="error"}'
            assert await under_test.metric(error) == 1

    asyncio.run(run())


def test_a_broken_connection_does_not_eject_the_worker():
    async def run():
        faults = only_first(Fault("disconnect", after=1))
        async with null_server(faults=faults) as server, router_before([server]) as under_test:
            async with under_test.post(GENERATE, streamed(GENERATE)) as answer:
                assert "error" in payloads(await answer.read())[-1]
            async with under_test.post(GENERATE, streamed(GENERATE)) as answer:
                assert "error" not in payloads(await answer.read())[-1]
            assert under_test.up == {0}

    asyncio.run(run())


JUNK = b"\x93junk\n\n"


@asynccontextmanager
async def junk(kind, path):
    """Run a server with invalid answers to a path. Yield its address and its requests."""
    seen, checked = [], asyncio.Event()

    async def answer(request):
        seen.append(await request.read())
        if kind.startswith("no HTTP"):
            request.transport.write(JUNK)
            request.transport.close()
        bodies = {
            "text": (JUNK, "application/json"),
            "a list": (b"[1]", "application/json"),
            "half of it": (json.dumps(whole(path)).encode()[:-9], "application/json"),
            "a page": (b"<html>" + JUNK, "text/html"),
            "a junk event": (b"data: " + JUNK, "text/event-stream"),
            "nothing": (b"", "text/event-stream"),
        }
        body, content_type = bodies.get(kind, (b"", "text/plain"))
        return web.Response(body=body, content_type=content_type)

    async def healthy(_):
        if kind == "no HTTP, and then nothing" and seen:
            checked.set()
            while checked.is_set():
                await asyncio.sleep(0.01)
        return web.Response()

    app = web.Application()
    app.router.add_post(path, answer)
    app.router.add_get("/health", healthy)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield WorkerAddress(f"http://127.0.0.1:{runner.addresses[0][1]}"), seen, checked
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("kind", "stream"),
    [
        *[(kind, False) for kind in ("text", "a list", "half of it", "a page", "no HTTP")],
        *[(kind, True) for kind in ("text", "a page", "a junk event", "nothing")],
        ("no HTTP", True),
    ],
)
def test_an_invalid_answer_is_retried_or_an_error(path, kind, stream):
    body = {**PATHS[path], "stream": stream}

    async def run():
        async with junk(kind, path) as (address, seen, _):
            async with cluster(1) as (_, [worker]), router_before([address, worker]) as under_test:
                for _ in range(2):
                    async with under_test.post(path, body) as answer:
                        data = await answer.read()
                        assert (answer.status, answer.headers[headers.WORKER]) == (200, "1")
                        assert payloads(data) if stream else json.loads(data) == whole(path)
                assert seen
            async with router_before([address]) as under_test:
                async with under_test.post(path, body) as answer:
                    assert answer.status == 502
                    assert (await answer.json())["error"]["type"] == "server_error"
                assert under_test.proxy.dispatcher.under_way == 0

    asyncio.run(run())


def test_a_client_that_leaves_during_a_health_check_is_counted():
    async def run():
        async with (
            junk("no HTTP, and then nothing", GENERATE) as (address, _, checked),
            router_before([address], **NEVER) as under_test,
        ):
            asked = asyncio.create_task(fetch(under_test, PATHS[GENERATE]))
            await checked.wait()
            asked.cancel()
            left = 'fairbench_requests_total{client="default",outcome="left"}'
            async with asyncio.timeout(120):
                while await under_test.metric(left) != 1:
                    await asyncio.sleep(0.01)
            checked.clear()

    asyncio.run(run())


@pytest.mark.parametrize("path", [GENERATE, COMPLETIONS, CHAT])
def test_a_stream_that_ends_early_gets_an_error(path):
    """The tokens that arrived are charged, as for any broken request."""

    async def run():
        faults = only_first(Fault("cut", after=2))
        async with null_server(faults=faults) as server, router_before([server]) as under_test:
            async with under_test.post(path, streamed(path)) as answer:
                *begun, error = payloads(await answer.read())
            assert (len(begun), error["error"]["code"]) == (2, 502)
            lost = 'fairbench_requests_total{client="default",outcome="lost"}'
            assert await under_test.metric(lost) == 1
            produced = 'fairbench_output_tokens_total{client="default"}'
            assert await under_test.metric(produced) >= 2
            assert under_test.up == {0}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "path"), [("POST", GENERATE), ("PUT", GENERATE), ("POST", "/nothing")]
)
def test_a_client_with_an_unread_body_learns_that_the_connection_closes(method, path):
    """Otherwise, a client would send its next request on that connection and get no answer."""

    async def body(answered):
        yield b"1" * 20_000  # more bytes than the router reads
        await answered.wait()  # even on a busy machine, some bytes are then still missing
        yield b"1" * 300_000

    async def run():
        async with cluster(1, router={"max_body_bytes": 10_000}) as (under_test, _):
            for _ in range(5):
                answered = asyncio.Event()
                sent = under_test.session.request(
                    method, under_test.url + path, data=body(answered)
                )
                async with sent as answer:
                    assert answer.status in (404, 405, 413)
                    assert answer.headers.get("Connection") == "close"
                    answered.set()
                async with under_test.post(GENERATE) as answer:
                    assert answer.status == 200
                    assert "Connection" not in answer.headers

    asyncio.run(run())
