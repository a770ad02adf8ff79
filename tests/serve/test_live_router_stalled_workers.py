"""Test workers that hang although their health checks pass, and workers that are only slow."""

import asyncio
import json
from contextlib import AsyncExitStack, suppress
from types import SimpleNamespace

import pytest
from aiohttp import web

from fairbench_load import headers
from fairbench_serve.health import LONGEST_STALLS, PROOF, WorkerWatch
from tests.serve.live_router import (
    CHAT,
    COMPLETIONS,
    GENERATE,
    PATHS,
    Worker,
    cluster,
    router_before,
    streamed,
    until,
)

STALL_S = 0.4
ROUTER = {"stall_s": STALL_S}


@pytest.mark.parametrize("held_at", [0, 2])
def test_a_worker_that_hangs_with_a_healthy_page_is_down_until_it_decodes(held_at):
    """The worker's requests end with an error and no retry, because one may be the cause."""

    async def run():
        async with cluster(2, router=ROUTER) as (under_test, workers):
            hung, other = workers
            body = streamed(GENERATE)
            hung.held_at = held_at
            async with under_test.post(GENERATE, body) as answer:
                said = await answer.content.readany() if held_at else b""
                hung.held_at = 0
                said += await answer.read()
            assert under_test.up == {1}
            assert await under_test.status("/health") == 200
            await until(lambda: any(seen[2] == PROOF for seen in hung.seen))
            served = []
            for _ in range(4):
                async with under_test.post(GENERATE) as one:
                    served.append((one.status, one.headers[headers.WORKER]))
            asked, up = len(other.seen), under_test.up
            hung.held_at = None
            hung.released.set()
            await until(lambda: under_test.up == {0, 1})
            return answer.status, b'"code":502' in said, served, asked, up

    status, is_error, served, asked, up = asyncio.run(run())
    assert (status, is_error) == (502 if held_at == 0 else 200, True)
    assert (served, asked, up) == ([(200, "1")] * 4, 4, {1})


def test_abandoned_requests_do_not_make_a_worker_look_alive():
    async def run():
        async with cluster(2, router=ROUTER) as (under_test, workers):
            workers[0].held_at = workers[1].held_at = 0
            sent = 0
            async with asyncio.timeout(60):
                while len(under_test.up) == 2:
                    sent += 1
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.02):
                            await statuses_of(under_test)
            return sent

    assert asyncio.run(run()) > 2


def test_error_answers_do_not_make_a_worker_alive():
    async def run():
        async with cluster(1, router=ROUTER) as (under_test, (worker,)):
            worker.held_at = 0
            hanging = asyncio.create_task(statuses_of(under_test))
            await until(lambda: worker.seen)
            worker.status = 400
            async with asyncio.timeout(60):
                while not hanging.done():
                    async with under_test.post(GENERATE) as answer:
                        assert answer.status in (400, 502, 503)
                    await asyncio.sleep(STALL_S / 20)
            return await hanging

    assert asyncio.run(run()) == 502


async def statuses_of(under_test):
    async with under_test.post(GENERATE) as answer:
        return answer.status


def test_a_slow_stream_counts_as_progress():
    async def run():
        async with cluster(1, router=ROUTER) as (under_test, (worker,)):
            worker.padding = [b'data: {"text": "a"}\n\n'] * 40
            worker.pause_s = STALL_S / 20
            async with under_test.post(GENERATE, streamed(GENERATE)) as answer:
                said = await answer.read()
            return answer.status, b"error" in said, under_test.up

    assert asyncio.run(run()) == (200, False, {0})


class Dripping(Worker):
    """A worker that begins an answer with ``first`` and then repeats ``drop`` without end.

    The router's own request, which proves that a worker decodes, gets ``{}`` with status 200.
    """

    kind = "text/event-stream"
    first = b""
    drop = b""

    async def answer(self, request):
        body = await request.json()
        self.seen.append((request.path, {}, body))
        if body == PROOF:
            return web.json_response({})
        response = web.StreamResponse(headers={"Content-Type": self.kind})
        await response.prepare(request)
        await response.write(self.first)
        while True:
            await response.write(self.drop)
            await asyncio.sleep(STALL_S / 20)


def event(**fields):
    return b"data: %b\n\n" % json.dumps(fields).encode()


def delta(**fields):
    return event(choices=[{"index": 0, "delta": fields}])


ONE = {"text": "a", "meta_info": {"completion_tokens": 1}}
DROPS = {
    "comments": (CHAT, b"", b": processing\n\n"),
    "comments after output": (CHAT, delta(content="a"), b": ping\n\n"),
    "roles": (CHAT, b"", delta(role="assistant", content="")),
    "empty deltas": (CHAT, delta(content="a"), delta(content="", tool_calls=[])),
    "empty choices": (COMPLETIONS, event(choices=[{"text": "a"}]), event(choices=[])),
    "pings": (CHAT, delta(content="a"), b'event: ping\ndata: {"type": "ping"}\n\n'),
    "the same output": (GENERATE, event(**ONE), event(**ONE)),
    "usage": (CHAT, delta(content="a"), event(choices=[], usage={"completion_tokens": 1})),
    "half an event": (CHAT, delta(content="a"), b"data: "),
    "spaces": (GENERATE, b'{"text":', b" "),
    "lines": (CHAT, b"{", b"\r\n"),
    "half an answer": (COMPLETIONS, b'{"choices": [', b'{"text": ""},'),
}


@pytest.mark.parametrize("name", DROPS)
def test_only_output_counts_as_progress(name):
    path, first, drop = DROPS[name]
    stream = not first.startswith(b"{")

    async def run():
        bad, good = Dripping(), Worker()
        bad.first, bad.drop = first, drop
        bad.kind = "text/event-stream" if stream else "application/json"
        for worker in (bad, good):
            await worker.start()
        body = {**PATHS[path], "stream": stream}
        async with router_before([bad, good], stall_s=STALL_S / 2) as under_test:
            async with asyncio.timeout(60), under_test.post(path, body) as answer:
                said = await answer.read()
            await until(lambda: any(seen[2] == PROOF for seen in bad.seen))
            await asyncio.sleep(0.1)  # two more checks, because an empty answer proves nothing
            up = under_test.up
        for worker in (bad, good):
            await worker.stop()
        return b'"code":502' in said, up

    assert asyncio.run(run()) == (True, {1})


class Flowing(Worker):
    """A worker whose streams never end."""

    async def stream(self, request, body):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(delta(content="a" * 60_000))


@pytest.mark.slow
@pytest.mark.parametrize("readers", [1, 3])
def test_clients_that_do_not_read_make_no_worker_look_silent(readers, monkeypatch):
    """Without this, a client could take a worker away from the others by reading nothing."""

    async def run():
        worker = Flowing()
        await worker.start()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(worker.stop)
            under_test = await stack.enter_async_context(router_before([worker], stall_s=STALL_S))
            stalls = []
            watch = under_test.proxy.attempts.progress
            monkeypatch.setattr(watch, "on_stall", stalls.append)
            for _ in range(readers):
                answer = under_test.session.post(under_test.url + CHAT, json=streamed(CHAT))
                await stack.enter_async_context(answer)
            flights = under_test.proxy.dispatcher.flights[0]
            await until(lambda: len(flights) == readers and all(one.paused for one in flights))
            await asyncio.sleep(2.5 * STALL_S)
            return stalls, len(flights)

    assert asyncio.run(run()) == ([], readers)


class Telling(Worker):
    """A worker with this page of metrics."""

    page = ""

    async def metrics(self, _):
        return web.Response(text=self.page)

    def pages(self):
        return [web.get("/metrics", self.metrics)]


class Counting(Telling):
    """A worker that exports its number of produced tokens, which grows while ``decodes``."""

    decodes = True
    tokens = 0

    @property
    def page(self):
        self.tokens += self.decodes
        return f'vllm:generation_tokens_total{{engine="0"}} {self.tokens}\n'


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        # until the first token, SGLang has no counter
        'sglang:http_requests_total{method="GET"} 9\n',
        "vllm:generation_tokens_total 0\n",
        "vllm:kv_cache_usage_perc NaN\n",
    ],
)
def test_a_worker_whose_first_request_hangs_is_down_in_the_usual_time(page):
    """Its longest answer would be allowed to take five times as long."""

    async def run():
        worker = Telling(held_at=0)
        worker.page = page
        await worker.start()
        async with router_before([worker], stall_s=2.0) as under_test:
            body = {**PATHS[COMPLETIONS], "max_tokens": 10**6}
            began_s = asyncio.get_running_loop().time()
            async with under_test.post(COMPLETIONS, body) as answer:
                took_s = asyncio.get_running_loop().time() - began_s
                assert answer.status == 502
        await worker.stop()
        return took_s

    assert asyncio.run(run()) < 0.9 * LONGEST_STALLS * 2.0


def test_an_invalid_metrics_page_costs_nothing():
    async def run():
        worker = Telling(held_at=0)
        worker.page = "sglang:gen_throughput many\n"
        await worker.start()
        async with router_before([worker], **ROUTER) as under_test:
            status = await statuses_of(under_test)
        await worker.stop()
        return status

    assert asyncio.run(run()) == 502


@pytest.mark.slow
def test_a_worker_that_counts_tokens_may_take_long_over_a_non_streamed_answer():
    async def run():
        worker = Counting(held_at=0)
        await worker.start()
        async with router_before([worker], **ROUTER) as under_test:
            asked = asyncio.create_task(statuses_of(under_test))
            await asyncio.sleep(3 * STALL_S)
            up = under_test.up
            worker.decodes = False
            status = await asked
        await worker.stop()
        return up, status

    assert asyncio.run(run()) == ({0}, 502)


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "least_s"), [(10, 1.0), (10**6, 5 * STALL_S)])
def test_a_worker_without_token_counts_may_take_as_long_as_its_longest_answer(tokens, least_s):
    """Ten tokens at 0.1 s take a second. No answer may take more than five times the usual time."""

    async def run(tokens):
        async with cluster(1, router=ROUTER) as (under_test, (worker,)):
            worker.held_at = 0
            body = {**PATHS[COMPLETIONS], "max_tokens": tokens}
            began_s = asyncio.get_running_loop().time()
            async with under_test.post(COMPLETIONS, body) as answer:
                took_s = asyncio.get_running_loop().time() - began_s
                return answer.status, took_s

    status, took_s = asyncio.run(run(tokens))
    assert status == 502
    assert took_s >= least_s - 0.1


def test_the_longest_answer_of_a_worker_without_token_counts_sets_its_time(monkeypatch):
    async def no_page(*_):
        return None

    def flight(tokens):
        request = SimpleNamespace(max_new_tokens=tokens)
        return SimpleNamespace(request=request, first_token_s=None, paused=False)

    async def stalled_after_s(*tokens):
        stalled = []
        desk = SimpleNamespace(flights={0: [flight(one) for one in tokens]})
        watch = WorkerWatch([None], desk, None, 1.0, stalled.append)
        passed_s = 0.0
        while not stalled:
            passed_s += 0.25
            await watch._look(0, 0.25)
        return passed_s

    monkeypatch.setattr("fairbench_serve.health.page_of", no_page)
    # 0.1 s per token, at least one and at most five stall timeouts of 1 s
    for tokens, limit_s in (((5,), 1.0), ((5, 30, 10), 3.0), ((30, 5), 3.0), ((5, 999), 5.0)):
        assert asyncio.run(stalled_after_s(*tokens)) == limit_s
