"""Test what a router learns when it starts, and what it reports."""

import asyncio

import pytest

from fairbench_load import client_metrics, headers
from fairbench_load.processes.addresses import WorkerAddress, parse_worker
from tests.serve.live_router import GENERATE, PATHS, cluster, until


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://a:1", WorkerAddress("http://a:1")),
        ("https://a/", WorkerAddress("https://a")),
        ("http://LocalHost:80/", WorkerAddress("http://localhost")),
        ("http://a:1,kv=tcp://b:2", WorkerAddress("http://a:1", "tcp://b:2")),
        (
            "http://a:1,kv=tcp://b:2,replay=tcp://b:3",
            WorkerAddress("http://a:1", "tcp://b:2", "tcp://b:3"),
        ),
    ],
)
def test_workers_have_the_names_that_were_given(text, expected):
    assert parse_worker(text) == expected
    assert parse_worker(expected.as_option()) == expected


def test_the_smallest_pool_bounds_the_assumed_cache():
    """Two prompts together exceed the pool, so the first is assumed to be evicted."""

    async def run():
        info = {"max_total_num_tokens": 1000}
        async with cluster(2, router={"router": "d2lpm"}, info=info) as (under_test, workers):
            workers[0].healthy = False  # both then go to one worker
            await until(lambda: under_test.up == {1})
            tree = under_test.proxy.dispatcher.router._tree
            held = []
            for kind in range(3):
                body = {**PATHS[GENERATE], "input_ids": [kind] * 480}
                async with under_test.post(GENERATE, body) as answer:
                    assert answer.status == 200
                held.append(sum(node.length for node in tree.nodes() if node.workers))
            return held

    assert asyncio.run(run()) == [480, 960, 960]


def test_clients_beyond_a_bound_share_a_label(monkeypatch):
    monkeypatch.setattr(client_metrics, "MAX_CLIENTS", 2)

    async def run():
        async with cluster(1) as (under_test, _):
            for client in ("ann", "bob", "cat", "dan", "ann"):
                async with under_test.post(GENERATE, **{headers.CLIENT: client}) as answer:
                    assert answer.status == 200
            names = ("ann", "dan", "(others)", "cat")
            total = 'fairbench_requests_total{{client="{}",outcome="ok"}}'
            return [await under_test.metric(total.format(name)) for name in names]

    # no client holds a label permanently, and none is lost
    assert asyncio.run(run()) == [1, 1, 3, 0]


def test_the_metrics_say_how_tokens_are_counted():
    async def run():
        async with cluster(1) as (under_test, _):
            labels = '{router="round-robin",token_count_method="approximated: 4 bytes a token"}'
            return await under_test.metric(f"fairbench_router_info{labels}")

    assert asyncio.run(run()) == 1
