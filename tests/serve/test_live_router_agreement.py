"""Test that the live router finds the simulator's prefixes by token ids and KV events."""

from array import array

import pytest

from fairbench.config.resolve import resolve
from fairbench.schedulers.base import Router
from fairbench.sim import run as sim_run
from fairbench_load.driver.server_apis import token_ids
from fairbench_load.kv_event_wire import BlockRemoved, BlockStored
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.kv_events import BlockIndex

VOCAB = range(16, 32_000)


def ids_of(prompt):
    return array("I", [int(one) for segment in prompt for one in token_ids(segment, VOCAB)])


class Behind(Router):
    """A real Dispatcher between the simulated cluster and a router. It gets token ids."""

    name = "behind"
    Params = None
    wants_evictions = True

    def __init__(self, router, workers):
        self.router = router
        self.workers = workers
        self.now_s = 0.0
        self.flights = {}

    holds = False

    def prepare(self, setup):
        self.home = Dispatcher(
            self.router,
            self.workers,
            setup.pool_tokens,
            lambda: self.now_s,
            followed=range(self.workers),
        )

    def route(self, request, now_s):
        self.now_s = now_s
        made = self.home.make_request(
            request.client,
            ids_of(request.prompt),
            request.max_new_tokens,
            request.program_id,
            request.depth,
        )
        flight = self.flights[request.request_id] = self.home.dispatch(made)
        return flight.worker

    def on_finish(self, request, worker, output, now_s):
        self.now_s = now_s
        self.home.finish(self.flights.pop(request.request_id), output.length)

    def on_evict(self, prefix, evicted_tokens, worker, now_s):
        """Report the eviction as KV events of single tokens."""
        self.now_s = now_s
        ids = ids_of(prefix).tolist()
        kept = len(ids) - evicted_tokens
        index = BlockIndex(lambda pages, tokens: self.home.lost(worker, pages, tokens), print)
        names = list(range(1, len(ids) + 1))
        index.apply([BlockStored(names, None, ids, 1, None), BlockRemoved(names[kept:])])


def hit_rates(monkeypatch, seeds, settings, **flags):
    """Return hit rates (of the simulator, with the live router) over some seeds."""
    plain, live = [], []
    build = sim_run.router_of
    for seed in seeds:
        flags |= {"workload": "chat", "scheduler": "d2lpm", "dp": 4, "seed": seed}
        flags |= {"request_rate": 5.0}
        spec = resolve(flags, settings)
        plain.append(sim_run.simulate(spec).summary["cache_hit_rate"])
        with monkeypatch.context() as patch:
            patch.setattr(sim_run, "router_of", lambda given: Behind(build(given), given.dp))
            live.append(sim_run.simulate(spec).summary["cache_hit_rate"])
    return sum(plain) / len(plain), sum(live) / len(live)


@pytest.mark.slow
def test_pages_lose_few_hits(monkeypatch):
    """Many first messages have fewer than 32 tokens. Pages of 32 would lose 4.5% of the hits."""
    settings = {"engine.max_running_requests": 64}
    plain, live = hit_rates(monkeypatch, range(2), settings, duration_s=30.0)
    assert abs(live / plain - 1) < 0.025


@pytest.mark.slow
def test_a_long_queue_loses_no_hits(monkeypatch):
    """If waiting prompts counted as cached, they would displace a quarter of the hits."""
    settings = {"engine.max_total_tokens": 60_000, "engine.max_running_requests": 2_048}
    plain, live = hit_rates(monkeypatch, [0], settings, duration_s=60.0)
    assert live / plain - 1 > -0.03
