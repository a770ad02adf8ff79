"""The queue before a simulated cluster, kept up to date with what its workers do."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from typing import Self

from fairbench.core import PS_PER_S, Request
from fairbench.errors import RunFailed
from fairbench.schedulers.base import Router
from fairbench.schedulers.gateway.queue import GatewayQueue
from fairbench.schedulers.gateway.room import AlwaysRoom
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.sim.clock import Clock
from fairbench.sim.engine.replica import Replica
from fairbench.sim.sequence import REFUSED, Sequence


class Ingress:
    """Where requests are held until the ``queue`` lets them go to a worker.

    It is asked again when a request arrives or is over, and when a worker has decided what to run.
    """

    def __init__(self, clock: Clock, workers: Many[Replica], queue: GatewayQueue) -> None:
        self.queue = queue
        self._clock = clock
        self._workers = workers
        self._held: dict[Request, Sequence] = {}
        self._releasing = self._again = False
        for worker in workers:
            worker.on_pass = self._release

    @classmethod
    def of_router(cls, clock: Clock, router: Router, workers: Many[Replica]) -> Self:
        """For a router that may hold requests: first come, first asked."""
        return cls(clock, workers, GatewayQueue(FCFS(FCFS.Params()), router, AlwaysRoom()))

    def enter(self, sequence: Sequence) -> None:
        """A request arrives at the cluster."""
        self._held[sequence.request] = sequence
        self.queue.enter(sequence.request, self._clock.now_ps / PS_PER_S)
        self._release()

    def finished(self, sequence: Sequence) -> None:
        """A request is over: finished, refused or aborted."""
        produced = 0 if sequence.status == REFUSED else sequence.produced
        self.queue.finish(sequence.request, produced)
        self._release()

    def held(self) -> Iterator[Sequence]:
        """What waits here, in order of arrival."""
        return iter(self._held.values())

    def _release(self) -> None:
        """Send what may go. What that changes at once, such as a refusal, comes after it."""
        self._again = True
        if self._releasing:
            return
        self._releasing = True
        while self._again:
            self._again = False
            self.queue.release(self._clock.now_ps / PS_PER_S, self._send)
        self._releasing = False

    def _send(self, request: Request, worker: int) -> None:
        if not 0 <= worker < len(self._workers):
            raise RunFailed(f"there is no worker {worker}")
        self._workers[worker].submit(self._held.pop(request))
