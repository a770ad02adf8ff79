"""Loads on the toy engine that keep clients backlogged, and their units in the theorems.

Queues are so deep that no client's queue becomes empty during a pass. If one did, the client would
not be backlogged, and an apparent violation would be an error of the test.
"""

from __future__ import annotations

import random

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.local.vtc import VTC
from tests.schedulers.local.local_requests import Calls
from tests.schedulers.local.local_toy import ToyEngine

MEMORY = 900
LARGEST_INPUT = 200
VTC_UNIT = max(LARGEST_INPUT, 2 * MEMORY)
DLPM_UNIT = LARGEST_INPUT + 2 * MEMORY
QUANTUM = 300
DEPTH = 50  # more requests than fit into the memory together


class Mix:
    """Random requests. Each client has its own lengths and its own shared documents."""

    def __init__(self, seed: int, clients: str) -> None:
        self._rng = random.Random(seed)
        self._call = Calls()
        self._inputs = {c: self._rng.choice([20, 60, LARGEST_INPUT]) for c in clients}
        self._outputs = {c: self._rng.choice([5, 20, 80]) for c in clients}

    def __call__(self, client: str) -> Request:
        rng = self._rng
        document = rng.randint(1, self._inputs[client] - 10)
        tail = rng.randint(10, self._inputs[client] - document)
        output = rng.randint(1, self._outputs[client])
        return self._call(client, (f"{client}{rng.randrange(3)}", document), tail=tail,
                          max_new=output)  # fmt: skip


def overload(engine: ToyEngine, mix: Mix, clients: str, steps: int, depth: int = DEPTH) -> None:
    """Keep all ``clients`` backlogged throughout."""
    for _ in range(steps):
        for client in clients:
            while engine.waiting(client) < depth:
                engine.submit(mix(client))
        engine.step()


def on_and_off(engine: ToyEngine, mix: Mix, seed: int, steps: int) -> None:
    """Keep a backlogged, let b and c join and leave, and let d send a request occasionally."""
    rng = random.Random(seed)
    active = {"b": True, "c": False}
    for _ in range(steps):
        while engine.waiting("a") < DEPTH:
            engine.submit(mix("a"))
        for client in "bc":
            active[client] ^= rng.random() < 0.05
            while active[client] and engine.waiting(client) < DEPTH:
                engine.submit(mix(client))
        if not engine.waiting("d") and not engine.running("d") and rng.random() < 0.1:
            engine.submit(mix("d"))
        engine.step()


def toy(scheduler: LocalScheduler, clients: str = "abcd", **options) -> ToyEngine:
    """Return an engine that logs the service that the scheduler should share."""
    client_view = isinstance(scheduler, VTC) and scheduler.params.charge == "input"
    return ToyEngine(scheduler, MEMORY, clients, client_view=client_view, **options)
