"""Test that a scheduler admits the same requests in all three hosts."""

from __future__ import annotations

import random
from inspect import ismethod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request
from fairbench.schedulers.accounts.account import Account
from fairbench.schedulers.charging.engine import Charging
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.local.lpm import LPM
from fairbench.schedulers.local.preble_groups import PrebleGroups
from fairbench.schedulers.local.vtc import VTC
from tests.schedulers.local.local_homes import EngineHome, Gate, Home, ListHome, SimHome, World
from tests.schedulers.local.local_requests import Calls
from tests.strategies import examples

CAPACITY = 600  # few tokens, so that evictions occur
SCHEDULERS = {
    "fcfs": lambda: FCFS(FCFS.Params()),
    "lpm": lambda: LPM(LPM.Params()),
    "lpm-limit": lambda: LPM(LPM.Params(queue_limit=3)),  # the limit is crossed in both directions
    "vtc-extend": lambda: VTC(VTC.Params()),
    "vtc-input": lambda: VTC(VTC.Params(charge="input", weights={"a": 3, "b": 0.5})),
    "dlpm": lambda: DLPM(DLPM.Params(quantum=40)),
    "dlpm-min0": lambda: DLPM(DLPM.Params(quantum=15, rejoin="min0", charge_recompute=True)),
    "preble": lambda: PrebleGroups(PrebleGroups.Params(groups=4)),
    "dlpm-skip": lambda: DLPM(DLPM.Params(quantum=40, no_room="skip")),
    "dlpm-relaxed": lambda: DLPM(DLPM.Params(quantum=40, no_room="skip", refill="relaxed")),
    "dlpm-zero": lambda: DLPM(DLPM.Params(quantum=15, no_room="skip", rejoin="paper_zero")),
    "preble-skip": lambda: PrebleGroups(PrebleGroups.Params(groups=4, no_room="skip")),
}

clients = st.sampled_from("abc")
arrivals = st.tuples(
    st.just("arrive"),
    clients,
    st.sampled_from(["", "x", "y"]),
    st.sampled_from([5, 31, 32, 33, 60]),
    st.sampled_from([1, 2, 40]),
    st.integers(1, 20),
)
passes = st.tuples(st.just("pass"), st.integers(1, 300), st.integers(1, 6))
OPERATIONS = st.lists(
    st.one_of(
        arrivals,
        arrivals,
        passes,
        st.tuples(st.just("decode"), st.integers(1, 5)),
        st.tuples(st.just("finish"), st.integers(0, 9)),
        st.tuples(st.just("retract"), st.integers(0, 9)),
        st.tuples(st.just("evict"), st.integers(1, 200)),
    ),
    min_size=5,
    max_size=50,
)


class Lockstep:
    """A machine that plays the same events in every host and compares the results."""

    def __init__(self, make, homes: list[type[Home]]) -> None:
        self.world = World(CAPACITY)
        self.calls = Calls()
        self.homes = [home(self.world, make()) for home in homes]
        self.admissions = 0

    def arrive(self, client: str, document: str, shared: int, tail: int, max_new: int) -> None:
        segments = [(document, shared)] if document else []
        request = self.calls(client, *segments, tail=tail, max_new=max_new)
        self.world.arrive(request)
        for home in self.homes:
            home.arrive(request)

    def run_pass(self, tokens: int, requests: int) -> None:
        gates = [Gate(self.world, tokens, requests) for _ in self.homes]
        for home, gate in zip(self.homes, gates, strict=True):
            home.run_pass(gate)
        admitted = gates[0].can_run_list
        assert [gate.can_run_list for gate in gates] == [admitted] * len(gates)
        self.admissions += len(admitted)
        for request in admitted:
            self.world.start(request)
            self._produce(request, 1)

    def decode(self, steps: int) -> None:
        for request in self.world.running:
            self._produce(request, steps)

    def _produce(self, request: Request, tokens: int) -> None:
        self.world.sequences[request].produced += tokens
        for home in self.homes:
            home.scheduler.on_tokens(request.client, tokens)

    def finish(self, index: int) -> None:
        if not (running := self.world.running):
            return
        request = running.pop(index % len(running))
        sequence = self.world.sequences[request]
        prompt = (*request.prompt, sequence.output._replace(length=sequence.produced))
        self.world.store(prompt, request.input_tokens + sequence.produced)
        for home in self.homes:
            home.scheduler.on_finish(request)

    def retract(self, index: int) -> None:
        if not (running := self.world.running):
            return
        request = running.pop(index % len(running))
        self.world.readmitted.add(request)
        self.world.sequences[request].retract(0)
        for home in self.homes:
            home.retract(request)

    def evict(self, tokens: int) -> None:
        self.world.cache.evict(tokens)

    def check_state(self) -> None:
        """Check that a scheduler's state and its view of the queue agree in all hosts."""
        states = [kept_by(home.scheduler) for home in self.homes]
        assert all(state == states[0] for state in states)
        reference = list(self.homes[0].view.queue_order())
        for home in self.homes:
            assert list(home.view.queue_order()) == reference
            assert len(home.view) == len(reference)
            assert set(home.view.clients()) == {r.client for r in reference}
            assert all(home.view.matched_tokens(r) == self.world.matched(r) for r in reference)


def kept_by(part):
    """Return all state of a scheduler, including its account and its charging."""
    return {
        name: kept_by(one) if isinstance(one, (Account, Charging)) else one
        for name, one in vars(part).items()
        if name not in ("params", "setup") and not ismethod(one)
    }


def play(make, homes: list[type[Home]], operations) -> Lockstep:
    lockstep = Lockstep(make, homes)
    names = {"pass": "run_pass"}
    for kind, *arguments in operations:
        getattr(lockstep, names.get(kind, kind))(*arguments)
    lockstep.check_state()
    return lockstep


@pytest.mark.parametrize("name", SCHEDULERS)
@given(operations=OPERATIONS)
@examples(40)
def test_a_scheduler_admits_the_same_in_all_three_hosts(name, operations):
    play(SCHEDULERS[name], [ListHome, EngineHome, SimHome], operations)


def long_story(seed: int) -> list[tuple]:
    """Play 200 operations, which fill queues more than Hypothesis does."""
    rng = random.Random(seed)
    story: list[tuple] = []
    for _ in range(200):
        kind = rng.choices(
            ["arrive", "pass", "decode", "finish", "retract", "evict"], [8, 5, 2, 2, 1, 1]
        )[0]
        if kind == "arrive":
            document, shared = rng.choice(["", "x", "y", "z"]), rng.choice([5, 31, 32, 33, 60])
            tail, max_new = rng.choice([1, 2, 40]), rng.randint(1, 20)
            story.append((kind, rng.choice("abcd"), document, shared, tail, max_new))
        elif kind == "pass":
            story.append((kind, rng.randint(1, 300), rng.randint(1, 6)))
        else:
            story.append((kind, rng.randint(1, 300 if kind == "evict" else 5)))
    return story


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 60))]
)
def test_long_sequences_of_operations_admit_the_same_everywhere(seed):
    story = long_story(seed)
    for make in SCHEDULERS.values():
        assert play(make, [ListHome, EngineHome, SimHome], story).admissions > 40
