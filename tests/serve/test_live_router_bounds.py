"""Test bounds on what clients can make a router or a worker's plugin keep, and for how long."""

import asyncio
import gzip
import json
import logging
import sys
from array import array
from types import SimpleNamespace

import pytest
from aiohttp import ClientSession
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from fairbench.core import Request, Segment
from fairbench.schedulers.parts import worker_credits
from fairbench.schedulers.parts.worker_credits import WorkerCredit, to_forget
from fairbench.schedulers.registry import build_router
from fairbench.schedulers.routing import client_round_robin
from fairbench_engines.sglang.requests import client_of
from fairbench_load import client_metrics
from fairbench_load.headers import HEALTH, OTHERS
from fairbench_load.http_server import Problem, listening
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_load.token_pages import segments_of
from fairbench_serve.answers import Charge
from fairbench_serve.app import router_app
from fairbench_serve.calls import GenerateApi
from fairbench_serve.config import RouterConfig
from fairbench_serve.metrics import TotalsByClient
from fairbench_serve.prompts import ApproximateTokens, PromptLimits
from tests.serve.live_router import CHAT, GENERATE, Worker, cluster


def request(number, client, tokens=10):
    prompt = segments_of(array("I", range(tokens)))
    return Request(number, client, -1, 0, prompt, tokens, 8, 0.0)


def test_clients_unused_for_longest_are_forgotten_and_debtors_last():
    left = {"old debtor": -50.0, "poor": 1.0, "rich": 90.0, "busy": 99.0}
    left |= {f"used lately {n}": 100.0 for n in range(3)}
    credit = {client: WorkerCredit(0b1) for client in left}
    for client, credit_there in left.items():
        credit[client][0] = credit_there
    assert to_forget(credit, {"busy"}, batch=1) == ["rich"]
    assert to_forget(credit, {"busy"}, batch=3) == ["rich", "poor", "old debtor"]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 200)), max_size=100))
def test_a_router_keeps_a_bounded_number_of_clients(asked):
    """Each client once took 0.42 KB permanently. A returning worker then delayed all requests."""
    limit, quantum = 8, 1000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_credits, "MAX_CLIENTS", limit)
        router = build_router("d2lpm", {"d2lpm.worker_quantum": quantum}, 2)
        held = request(-1, "held")
        place = router.route(held, 0.0)
        before = dict(router.credit["held"])
        for number, (client, tokens) in enumerate(asked):
            one = request(number, f"client-{client}", tokens)
            router.on_finish(one, router.route(one, 0.0), Segment("o", tokens), 0.0)
            assert len(router.credit) <= limit
        assert router.credit["held"] == before  # still in flight, so it is not forgotten
        router.on_failure(held, place, 0.0)


def test_client_round_robin_keeps_a_bounded_number_of_clients(monkeypatch):
    monkeypatch.setattr(client_round_robin, "MAX_CLIENTS", 3)
    router = build_router("client-round-robin", {}, 4)
    names = ["a", "b", "a", "c", "d", "a", "b"]
    places = [router.route(request(n, name), 0.0) for n, name in enumerate(names)]
    # Places are a 0, b 1, a 1, c 2, d 3 (b, idle for longest, is forgotten), a 2, and b again, the
    # fifth.
    assert places == [0, 1, 1, 2, 3, 2, 0]
    assert len(router._turns) == 3


def page_of(registry):
    return generate_latest(registry).decode()


def test_labels_name_the_latest_clients_and_sums_stay_the_same(monkeypatch):
    monkeypatch.setattr(client_metrics, "MAX_CLIENTS", 3)
    kept, registry = TotalsByClient(), CollectorRegistry()
    registry.register(kept)
    for number in range(1000):
        kept.count_finished(f"client-{number}", "ok", Charge(10, 1, 5))
        kept.count_finished("modest", "ok", Charge(1, 0, 0))
    page = page_of(registry)
    assert 'fairbench_requests_total{client="modest",outcome="ok"} 1000.0' in page
    assert f'fairbench_input_tokens_total{{client="{OTHERS}"}} 9980.0' in page
    assert page.count("fairbench_service_total{") == 4


def test_the_plugin_keeps_a_bounded_number_of_entries(monkeypatch):
    monkeypatch.setattr(client_metrics, "MAX_CLIENTS", 3)
    kept = client_metrics.Ledger()
    for number in range(100):
        kept.count("arrivals", f"client-{number}")
        kept.count("arrivals", "modest")
    assert len(kept.items()) == 4
    assert kept.totals_of("modest")["arrivals"] == 100
    assert kept.totals_of(OTHERS)["arrivals"] == 98
    assert kept.total("arrivals") == 200


def test_the_plugin_keeps_a_bounded_number_of_series(monkeypatch):
    monkeypatch.setattr(client_metrics, "MAX_CLIENTS", 3)
    exporter = client_metrics.Exporter.__new__(client_metrics.Exporter)
    exporter._labels = {}
    names = [exporter._client_label(f"client-{number}") for number in range(5)]
    assert names == ["client-0", "client-1", "client-2", OTHERS, OTHERS]
    assert exporter._client_label("client-1") == "client-1"


def test_a_servers_own_requests_belong_to_no_client():
    """These requests are not charged to the unnamed client."""
    asked = SimpleNamespace(rid="HEALTH_CHECK_1234", routing_key=None)
    assert client_of(asked) == HEALTH
    asked.rid = "1234"
    assert client_of(asked) == "default"


JUNK = {
    "plain": b"not compressed",
    "cut-off": gzip.compress(b"{}")[:-4],
    "broken": gzip.compress(b"x" * 100)[:20] + b"junk" * 9,
}


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("path", [GENERATE, CHAT])
def test_a_wrongly_compressed_body_leaves_no_traceback(path, junk, caplog):
    """The request leaves no traceback in the log."""

    async def run():
        async with cluster(1) as (worker_side, (worker,)):
            config = RouterConfig("round-robin", [WorkerAddress(worker.url)])
            async with listening(router_app(config), "127.0.0.1", 0, decompress=False) as server:
                headers = {"Content-Encoding": "gzip", "Connection": "close"}
                sent = {"data": JUNK[junk], "headers": headers}
                found = []
                for _ in range(3):
                    async with worker_side.session.post(server.url + path, **sent) as answer:
                        found.append(answer.status)
                        await answer.read()
                await asyncio.sleep(0.05)
                return found

    with caplog.at_level(logging.INFO):
        assert asyncio.run(run()) == [400] * 3
    assert not [record for record in caplog.records if record.exc_info]


MANY = 62 * 2**20
BODIES = {
    "ids": lambda: b'{"input_ids":[' + b"1," * (MANY // 2) + b"1]}",
    "escapes": lambda: b'{"text":"' + b"\\u00e9" * (MANY // 6) + b'"}',
    "lists": lambda: b'{"text":[' + b"[]," * (MANY // 3) + b"1]}",
    "keys": lambda: b"{" + b",".join([b'"%07d":1' % n for n in range(600_000)]) + b"}",
}


@pytest.mark.parametrize("name", BODIES)
def test_expensive_bodies_are_refused_unread(name):
    class Never:
        def ids(self, text):
            raise AssertionError("it was read")

    with pytest.raises(Problem) as raised:
        GenerateApi().read(BODIES[name](), Never(), PromptLimits(400_000, 128_000))
    assert raised.value.status == 413


def test_a_prompt_that_fills_the_pool_is_not_refused():
    limits = PromptLimits(400_000, 128_000)
    body = json.dumps({"input_ids": [100_000] * 400_000}).encode()
    assert len(GenerateApi().read(body, ApproximateTokens(), limits).ids) == 400_000
    text = json.dumps({"text": 'a, "b": \n' * 80_000}).encode()
    assert GenerateApi().read(text, ApproximateTokens(), limits).ids


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_others_are_answered_while_62_mib_are_read(name):
    """Parsing the token ids once delayed all other requests for 15 s."""
    body = BODIES[name]()

    async def pieces():
        for start in range(0, len(body), 2**16):
            yield body[start : start + 2**16]

    async def run():
        worker = Worker(info={"max_total_num_tokens": 400_000})
        await worker.start()
        serve = [sys.executable, "-m", "fairbench", "serve", "--port", "0"]
        router = await asyncio.create_subprocess_exec(
            *serve, "--worker-url", worker.url, stdout=asyncio.subprocess.PIPE
        )
        answers, over = 0, False
        try:
            url = (await router.stdout.readline()).decode().strip()
            async with ClientSession() as session:

                async def health():
                    nonlocal answers
                    while not over:
                        async with session.get(f"{url}/health") as answer:
                            assert answer.status == 200
                        answers += 1

                asking = asyncio.create_task(health())
                async with session.post(url + GENERATE, data=pieces()) as answer:
                    assert answer.status == 413
                over = True
                await asking
        finally:
            router.terminate()
            await router.communicate()
            await worker.stop()
        return answers

    assert asyncio.run(run()) > 1
