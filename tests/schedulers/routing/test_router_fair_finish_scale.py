"""Test that fair finish checks few of many workers and decides as if it checked all."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, prompt_tokens
from fairbench.schedulers.base import Setup
from fairbench.schedulers.parts.finishes import (
    FEW,
    LEVELS,
    FinishBounds,
    WorkerBacklog,
)
from fairbench.schedulers.routing.fair_finish import FairFinish
from tests.schedulers.routing.router_helpers import answer, prompt
from tests.strategies import examples

WORKERS = 2 * FEW + 5
CLIENTS = [f"client-{number}" for number in range(12)]


class EveryWorker(FairFinish):
    """The definition, applied to every worker."""

    def route(self, request, now_s):
        found = self._tree.find(request.prompt)
        cached = self._tree.cached_tokens(found.node)
        output = self._lengths.expected(request.client) * (self.params.length_factor or 1.0)
        work, finish = {}, {}
        for worker in self._fleet.workers:
            hit = min(cached.get(worker, 0), request.input_tokens - 1)
            work[worker] = self._work.work_tokens(hit, request.input_tokens - hit, output)
            finish[worker] = self._backlogs[worker].finish_of_more(request.client, work[worker])
        holders = self._tree.holders(found.node)
        worker = self._best(finish, holders.workers, self._slack(holders.tokens))
        self._backlogs[worker].add_work(request.request_id, request.client, work[worker])
        self._tree.add(found, request.prompt, worker)
        self._fleet.dispatch(request, worker)
        return worker

    def _best(self, finish, holders, slack):
        holding = {w: at for w, at in finish.items() if holders >> w & 1}
        if holding and min(holding.values()) - min(finish.values()) <= slack:
            return self._fleet.cheapest(holding)
        return self._fleet.cheapest(finish)


class Stream:
    """A stream of random events for two routers, which must always choose alike."""

    def __init__(self, rng: Random, weights: dict[str, float], **params) -> None:
        self.rng, self.weights, self.number = rng, weights, 0
        self.flights: list[tuple[Request, int]] = []
        self.pair = [
            kind(FairFinish.Params(**params), WORKERS) for kind in (FairFinish, EveryWorker)
        ]
        for router in self.pair:
            router.prepare(Setup(weights=weights))
        self.up = set(range(WORKERS))

    def prompt(self, client):
        """Draw a prompt: a prefix that all share, a client's own, and often a known
        conversation.
        """
        parts = [("all", 20), (client, self.rng.choice([50, 200]))][: self.rng.randrange(3)]
        turns = self.rng.randrange(4)
        return prompt(*parts, *((f"{client}-{turn}", 30) for turn in range(turns)), ("q", 1))

    def send(self):
        client = self.rng.choice([*CLIENTS, *CLIENTS[:1] * self.rng.choice([0, 30])])
        made = self.prompt(client)
        sent = Request(self.number, client, 0, 0, made, prompt_tokens(made), 9)
        self.number += 1
        worker, expected = (router.route(sent, 0.0) for router in self.pair)
        assert worker == expected
        self.flights.append((sent, worker))

    def end(self):
        if self.flights:
            sent, worker = self.flights.pop(self.rng.randrange(len(self.flights)))
            output = answer(self.rng.choice([0, 100, 100, 700]))
            for router in self.pair:
                if output.length:
                    router.on_finish(sent, worker, output, 0.0)
                else:
                    router.on_failure(sent, worker, 0.0)

    def come_or_go(self):
        worker = self.rng.randrange(WORKERS + 3)
        for router in self.pair:
            if worker in self.up and len(self.up) > FEW // 2:
                router.on_worker_leave(worker, 0.0)
            else:
                router.on_worker_join(worker, 0.0)
        self.up ^= {worker}

    def evict(self):
        if self.flights:
            sent, worker = self.rng.choice(self.flights)
            gone = self.rng.randint(1, sent.input_tokens)
            for router in self.pair:
                router.on_evict(sent.prompt, gone, worker, 0.0)

    def reweigh(self):
        self.weights[self.rng.choice(CLIENTS)] = self.rng.choice([0.25, 1.0, 3.7])
        for router in self.pair:
            router.on_weights()

    def play(self, events):
        rare = [self.come_or_go, self.evict, self.reweigh]
        for _ in range(events):
            often = self.send if self.rng.random() < 0.7 else self.end
            (often if self.rng.random() < 0.97 else self.rng.choice(rare))()


@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.3, 2.0, 100.0, float("inf")]),
    st.dictionaries(st.sampled_from(CLIENTS), st.sampled_from([0.1, 0.5, 2.0, 3.7])),
)
@examples(25)
def test_decisions_equal_those_of_checking_every_worker(seed, slack, weights):
    Stream(Random(seed), weights, slack=slack).play(200)


@st.composite
def backlogs(draw):
    """Draw work by worker and client."""
    some = st.dictionaries(st.sampled_from(CLIENTS), st.integers(1, 10**7), max_size=8)
    return draw(st.lists(some, min_size=1, max_size=5))


@given(
    backlogs(),
    st.dictionaries(st.sampled_from(CLIENTS), st.sampled_from([0.01, 0.5, 2.0, 3.7, 1000.0])),
    st.integers(1, 10**6),
)
def test_bounds_are_below_the_true_value_and_close_to_it(works, weights, work):
    """The bound may be low by 3% and a token per client, since levels are whole numbers."""

    def weight(client):
        return weights.get(client, 1.0)

    bounds, exact = FinishBounds(weight, len(works)), [WorkerBacklog(weight) for _ in works]
    for worker, of in enumerate(works):
        for number, (client, under_way) in enumerate(of.items()):
            bounds.set_work(worker, client, under_way + 5)
            bounds.set_work(worker, client, under_way)
            exact[worker].add_work(number, client, under_way)
    for client in CLIENTS[:3]:
        found = bounds.lower_bounds(client, work * np.ones(len(works)))
        for worker, backlog in enumerate(exact):
            finish = backlog.finish_of_more(client, work)
            assert found[worker] <= finish
            if LEVELS[1] < (backlog.work(client) + work) / weight(client) < LEVELS[-1]:
                assert found[worker] >= 0.97 * finish - len(works[worker])


def test_past_requests_leave_no_state_behind():
    bounds, weights = FinishBounds(lambda client: weights[client], 2), {"a": 0.3, "b": 2.0}
    bounds.set_work(1, "a", 777)
    weights["a"] = 5.0
    bounds.set_work(1, "b", 12)
    for client in "ab":
        bounds.set_work(1, client, 0)
    assert not bounds._got.any()


def test_only_few_of_many_workers_are_checked(monkeypatch):
    """Every worker holds the shared prefix, so any of 200 workers could be the best."""
    looked = []
    finish = WorkerBacklog.finish_of_more
    monkeypatch.setattr(
        WorkerBacklog, "finish_of_more", lambda *told: looked.append(told) or finish(*told)
    )
    router, rng = FairFinish(FairFinish.Params(), 200), Random(0)
    router.prepare(Setup())
    for number in range(2000):
        made = prompt(("all", 50), (f"own-{number}", rng.randint(10, 2000)))
        sent = Request(number, f"client-{number}", 0, 0, made, prompt_tokens(made), 9)
        router.route(sent, 0.0)
    assert 2000 <= len(looked) < 2000 * 20
