"""The common part of the SGLang and vLLM bridges: clock, token ids and replica."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from fairbench_engines.replica.inside.token_ids import TokenIds
from fairbench_engines.replica.inside.virtual_time import VirtualTime

OPERATIONS = ("turn", "complete", "produced")
"""The methods of ``ClockedReplica`` that the simulator may call by message."""


def seed_all(seed: int, index: int, torch: Any) -> None:
    """Seed the random generators of a replica's process differently for each replica."""
    own = seed + (index << 32)
    random.seed(own)
    torch.manual_seed(own % 2**63)


class EngineReplicas(ABC):
    """The factory of a run's replicas, which holds the engine's configuration for the run.

    Each engine has a subclass, which defines ``configure`` and ``worker``.
    """

    def __init__(self, engine: str) -> None:
        self._clock = VirtualTime()
        self._clock.install(engine)
        self._tokens = TokenIds()
        self.charges_pass = False  # whether the CPU time of each admission pass is measured

    @abstractmethod
    def configure(self, told: dict[str, Any]) -> bool:
        """Configure the engine's code for a run; ``told`` holds the simulator's settings.

        Returns whether a fairbench scheduler orders requests instead of the engine's own policy.
        """

    @abstractmethod
    def worker(self, index: int, tells_evicted: bool) -> Any:
        """Return a replica's engine, which reports evictions if ``tells_evicted`` is True."""

    def replica(self, index: int, tells_evicted: bool) -> ClockedReplica:
        """Return the only replica of this process."""
        worker = self.worker(index, tells_evicted)
        return ClockedReplica(worker, self._clock, charges_pass=self.charges_pass)


class ClockedReplica:
    """A replica whose engine reads the simulator's clock instead of the machine's clock.

    With ``charges_pass``, each plan contains ``pass_ns``, the CPU time of the admission pass.
    """

    def __init__(self, worker: Any, clock: VirtualTime, *, charges_pass: bool) -> None:
        self._worker, self._clock = worker, clock
        # CPU time of the last admission pass in nanoseconds, or None if it is not measured
        self._pass_ns: int | None = None
        if charges_pass:
            worker.engine.plan = self._measured(worker.engine.plan)
        # requests of the last batch, and their numbers of output tokens before the batch ended
        self._batch: list[Any] = []
        self._before: list[int] = []

    def turn(self, now_ps: int, requests: list[Any], whole: bool) -> dict[str, Any]:
        """Add arriving requests to the engine's queue, and plan the next batch."""
        self._clock.set(now_ps)
        for request in requests:
            self._worker.submit(*request)
        plan: dict[str, Any] = self._worker.turn(whole=whole)
        if self._pass_ns is not None:
            plan["pass_ns"] = self._pass_ns
        return plan

    def _measured(self, plan: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap the engine's admission pass so that its CPU time is stored.

        CPU time of the thread, unlike elapsed time, does not depend on the load of the machine.
        """

        def measured() -> Any:
            start_ns = time.thread_time_ns()
            planned = plan()
            self._pass_ns = time.thread_time_ns() - start_ns
            return planned

        return measured

    def complete(self, now_ps: int) -> dict[str, Any]:
        """End the batch at ``now_ps``; return the finished requests and the engine's state."""
        self._clock.set(now_ps)
        produced = self._worker.produced_by
        self._batch = self._worker.batch_requests()
        self._before = [produced(request) for request in self._batch]
        ended: dict[str, Any] = self._worker.complete()
        return ended

    def produced(self, before: bool) -> list[tuple[int, int]]:
        """Return (number, output tokens) of every unfinished request.

        If ``before`` is True, the output tokens of the engine's last batch are not counted.
        """
        worker = self._worker
        now = [*worker.unfinished(), *(self._batch if before else ())]
        found = {worker.number(request): worker.produced_by(request) for request in now}
        if before:
            numbers = map(worker.number, self._batch)
            found |= dict(zip(numbers, self._before, strict=True))
        return list(found.items())
