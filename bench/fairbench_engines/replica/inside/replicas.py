"""The clock, the token ids and a replica of a run, which the bridges of both engines use."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
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

    @abstractmethod
    def configure(self, told: dict[str, Any]) -> bool:
        """Configure the engine for a run; return whether a scheduler of fairbench will decide."""

    @abstractmethod
    def worker(self, index: int, tells_evicted: bool) -> Any:
        """Return a replica that reports evictions if a router wants reports."""

    def replica(self, index: int, tells_evicted: bool) -> ClockedReplica:
        """Return a replica, which is the only replica of its process."""
        return ClockedReplica(self.worker(index, tells_evicted), self._clock)


class ClockedReplica:
    """A replica whose engine reads the simulator's clock."""

    def __init__(self, worker: Any, clock: VirtualTime) -> None:
        self._worker, self._clock = worker, clock
        # the requests of the last batch, and their output tokens before it ended
        self._batch: list[Any] = []
        self._before: list[int] = []

    def turn(self, now_ps: int, requests: list[Any], whole: bool) -> dict[str, Any]:
        """Let requests arrive, and plan the next batch."""
        self._clock.set(now_ps)
        for request in requests:
            self._worker.submit(*request)
        plan: dict[str, Any] = self._worker.turn(whole=whole)
        return plan

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
