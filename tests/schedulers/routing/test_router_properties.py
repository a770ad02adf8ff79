"""Test properties that every router in the registry has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, prompt_tokens
from fairbench.schedulers.base import Router, Setup
from fairbench.schedulers.registry import build_router, routers_by_name
from tests.schedulers.routing.router_helpers import Told, answer, prompt, prompts
from tests.strategies import examples

WORKERS = 3
# Routers that send a client's requests, all different, to only some workers. Their tests say why.
NARROW = {"vtc-basic"}

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from("ab"), prompts()),
        st.tuples(st.just("send"), st.sampled_from("ab"), prompts()),
        st.tuples(st.just("end"), st.integers(0, 30), st.integers(0, 9)),
        st.tuples(st.just("leave"), st.integers(0, WORKERS - 1)),
        st.tuples(st.just("join"), st.integers(0, WORKERS - 1)),
        st.tuples(st.just("evict"), st.integers(0, 30), st.integers(1, 9)),
    ),
    max_size=30,
)


def build(name: str, workers: int = WORKERS) -> Router:
    router = build_router(name, {}, workers)
    idle = dict.fromkeys(range(workers), (0, 0, 0))
    router.prepare(Setup(clients=("a", "b"), pool_tokens=1000, fleet=Told(idle)))
    return router


class Story:
    """A sequence of events for one router, with checks of its answers."""

    def __init__(self, name: str) -> None:
        self.router = build(name)
        self.up = set(range(WORKERS))
        self.flights: list[tuple[Request, int]] = []
        self.sent: list[tuple[Request, int]] = []
        self.now_s = 0.0

    def play(self, events) -> list[int]:
        for kind, *arguments in events:
            self.now_s += 1
            getattr(self, kind)(*arguments)
        return [worker for _, worker in self.sent]

    def send(self, client, made) -> None:
        request = Request(len(self.sent), client, 0, 0, made, prompt_tokens(made), 9, self.now_s)
        worker = self.router.route(request, self.now_s)
        assert worker in self.up, "sent to a worker that is gone"
        self.flights.append((request, worker))
        self.sent.append((request, worker))

    def end(self, which, tokens) -> None:
        if self.flights:
            request, worker = self.flights.pop(which % len(self.flights))
            self.router.on_finish(request, worker, answer(tokens), self.now_s)

    def leave(self, worker) -> None:
        if len(self.up) > 1 and worker in self.up:
            self.up.discard(worker)
            self.router.on_worker_leave(worker, self.now_s)

    def join(self, worker) -> None:
        self.up.add(worker)
        self.router.on_worker_join(worker, self.now_s)

    def evict(self, which, tokens) -> None:
        if self.sent and self.router.wants_evictions:
            request, worker = self.sent[which % len(self.sent)]
            gone = min(tokens, request.input_tokens)
            self.router.on_evict(request.prompt, gone, worker, self.now_s)


@pytest.mark.parametrize("name", routers_by_name())
@given(events=EVENTS)
@examples(12)
def test_every_request_goes_to_a_live_worker_and_twice_to_the_same_one(name, events):
    assert Story(name).play(events) == Story(name).play(events)


@pytest.mark.parametrize(
    "name", [name for name in routers_by_name() if hasattr(build(name), "_fleet")]
)
@given(events=EVENTS)
@examples(8)
def test_after_all_requests_end_nothing_is_in_flight(name, events):
    story = Story(name)
    story.play(events)
    story.play([("end", 0, 3)] * len(story.flights))
    fleet = story.router._fleet
    assert [fleet.unfinished_at(worker) for worker in fleet.workers] == [0] * len(story.up)


def spread(name: str, clients: str, count: int = 60) -> list[int]:
    """Return the requests per worker for unrelated prompts, none of which ends."""
    story = Story(name)
    for number in range(count):
        story.send(clients[number % len(clients)], prompt((str(number), 40)))
    return [sum(worker == w for _, worker in story.sent) for w in range(WORKERS)]


@pytest.mark.parametrize("name", [name for name in routers_by_name() if name not in NARROW])
def test_unrelated_prompts_are_spread_over_all_workers(name):
    assert min(spread(name, "ab")) >= 8


def test_vtc_basic_leaves_workers_idle_for_a_lone_user():
    assert spread("vtc-basic", "a")[2] == 0


@pytest.mark.parametrize("name", routers_by_name())
def test_a_worker_that_returns_is_used_again(name):
    story = Story(name)
    story.leave(1)
    for number in range(30):
        story.send("ab"[number % 2], prompt((str(number), 4000)))
    story.join(1)
    for number in range(30, 90):
        story.send("ab"[number % 2], prompt((str(number), 4000)))
    assert 1 in [worker for _, worker in story.sent[30:]]
