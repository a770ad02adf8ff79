"""The clock, the token ids and a replica of a run, which the bridges of both engines use."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from fairbench_engines.replica.inside.token_ids import TokenIds
from fairbench_engines.replica.inside.virtual_time import VirtualTime

OPERATIONS = ("turn", "complete", "produced")
"""The operations of a replica, which are methods of ``ClockedReplica``."""


def seed_all(seed: int, index: int, torch: Any) -> None:
    """Seed the random numbers of the replica ``index``: each replica draws its own."""
    own = seed + (index << 32)
    random.seed(own)
    torch.manual_seed(own % 2**63)


class EngineReplicas(ABC):
    """The configuration of one simulation; an engine's bridge adds ``configure`` and ``worker``."""

    def __init__(self, engine: str) -> None:
        self._clock = VirtualTime()
        self._clock.install(engine)
        self._tokens = TokenIds()
        self.charges_pass = False  # whether passes are measured

    @abstractmethod
    def configure(self, told: dict[str, Any]) -> bool:
        """Configure the engine for a run; return whether a scheduler of fairbench will decide."""

    @abstractmethod
    def worker(self, index: int, tells_evicted: bool) -> Any:
        """Return a replica that reports evictions if a router wants reports."""

    def replica(self, index: int, tells_evicted: bool) -> ClockedReplica:
        """Return a replica, which is the only replica of its process."""
        worker = self.worker(index, tells_evicted)
        return ClockedReplica(worker, self._clock, charges_pass=self.charges_pass)


class ClockedReplica:
    """A replica whose engine reads the simulator's clock.

    With ``charges_pass``, each plan has ``pass_ns``, the CPU time of the pass.
    """

    def __init__(self, worker: Any, clock: VirtualTime, *, charges_pass: bool) -> None:
        self._worker, self._clock = worker, clock
        self._pass_ns: int | None = None  # of the last pass, if passes are measured
        if charges_pass:
            worker.engine.plan = self._measured(worker.engine.plan)
        # the requests of the last batch, and their output tokens before it ended
        self._batch: list[Any] = []
        self._before: list[int] = []

    def turn(self, now_ps: int, requests: list[Any], whole: bool) -> dict[str, Any]:
        """Let requests arrive, and plan the next batch."""
        self._clock.set(now_ps)
        for request in requests:
            self._worker.submit(*request)
        plan: dict[str, Any] = self._worker.turn(whole=whole)
        if self._pass_ns is not None:
            plan["pass_ns"] = self._pass_ns
        return plan

    def _measured(self, plan: Callable[[], Any]) -> Callable[[], Any]:
        """Return a pass of the engine that notes its CPU time, on which the load has no effect."""

        def measured() -> Any:
            start_ns = time.thread_time_ns()
            planned = plan()
            self._pass_ns = time.thread_time_ns() - start_ns
            return planned

        return measured

    def complete(self, now_ps: int) -> dict[str, Any]:
        """Let the batch end."""
        self._clock.set(now_ps)
        produced = self._worker.produced_by
        self._batch = self._worker.batch_requests()
        self._before = [produced(request) for request in self._batch]
        ended: dict[str, Any] = self._worker.complete()
        return ended

    def produced(self, before: bool) -> list[tuple[int, int]]:
        """Return [number, output tokens] of every unfinished request.

        With ``before``, the last batch has not ended yet in the simulation, and its tokens do not
        count.
        """
        worker = self._worker
        now = [*worker.unfinished(), *(self._batch if before else ())]
        found = {worker.number(request): worker.produced_by(request) for request in now}
        if before:
            numbers = map(worker.number, self._batch)
            found |= dict(zip(numbers, self._before, strict=True))
        return list(found.items())
