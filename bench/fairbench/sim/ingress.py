"""The queue before a simulated cluster, which receives all events of the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from functools import partial
from math import ceil
from typing import Self

from fairbench.core import PS_PER_S, Request
from fairbench.errors import RunFailed
from fairbench.schedulers.base import Router
from fairbench.schedulers.gateway.queue import GatewayQueue, HoldsRequests, InOrder
from fairbench.schedulers.gateway.saturation.detector import AlwaysRoom
from fairbench.sim.clock import DECIDE, Clock
from fairbench.sim.engine.contract import Replica
from fairbench.sim.sequence import REFUSED, Sequence

BEFORE_WORKERS = -1  # its key among the events that decide at one instant


class Ingress:
    """A queue that keeps requests until the ``queue`` policy releases them to a worker.

    The queue is called again when a request arrives or ends, and when a worker has decided its next
    step. The call comes at that instant, after every iteration that ends then, and never in the
    middle of a pass. The queue receives ends and arrivals in their order.
    """

    def __init__(self, clock: Clock, workers: Many[Replica], queue: HoldsRequests) -> None:
        self.queue = queue
        self._clock = clock
        self._workers = workers
        self._held: dict[Request, Sequence] = {}
        self._sent: set[Request] = set()
        self._events: list[Callable[[], None]] = []  # events that the queue has not received yet
        self._due_ps: int | None = None  # the time of its next call
        self.before: Callable[[], None] | None = None  # called before the queue is called
        # its key among the queues that are called at one instant
        self.turn: Callable[[], int] = lambda: BEFORE_WORKERS
        for worker in workers:
            worker.on_pass = self.soon

    @classmethod
    def of_router(cls, clock: Clock, router: Router, workers: Many[Replica]) -> Self:
        """Return an ingress for a router that may keep requests, called in order of arrival."""
        return cls(clock, workers, GatewayQueue(InOrder(InOrder.Params()), router, AlwaysRoom()))

    def enter(self, sequence: Sequence) -> None:
        self._held[sequence.request] = sequence
        self._events.append(partial(self._take_in, sequence))
        self.soon()

    def finished(self, sequence: Sequence) -> None:
        if sequence.request not in self._sent:
            return  # the request was refused here
        self._sent.remove(sequence.request)
        produced = 0 if sequence.status == REFUSED else sequence.produced
        now_s = self._clock.now_ps / PS_PER_S
        self._events.append(partial(self.queue.finish, sequence.request, produced, now_s))
        self.soon()

    def held(self) -> Iterator[Sequence]:
        return iter(self._held.values())

    def soon(self) -> None:
        """Call the queue at this instant, because something has changed."""
        if self._held or self._events:
            self._ask_at(self._clock.now_ps)

    def _ask_at(self, time_ps: int) -> None:
        if self._due_ps is None or not self._clock.now_ps <= self._due_ps <= time_ps:
            self._due_ps = time_ps
            self._clock.at(time_ps, DECIDE, self.turn(), self._release)

    def _release(self) -> None:
        """Report new events to the queue, and send the requests that may go."""
        now_ps = self._clock.now_ps
        if now_ps != self._due_ps:
            return
        self._due_ps = None
        events, self._events = self._events, []
        for tell in events:
            tell()
        if self.before is not None:
            self.before()
        now_s = now_ps / PS_PER_S
        for request in self.queue.shed(now_s):
            self._refuse(request)
        self.queue.release(now_s, self._send)
        wake_s = self.queue.wake_s(now_s)
        if wake_s is not None:
            self._ask_at(max(now_ps + 1, ceil(wake_s * PS_PER_S)))

    def _take_in(self, sequence: Sequence) -> None:
        if not self.queue.enter(sequence.request, self._clock.now_ps / PS_PER_S):
            self._refuse(sequence.request)

    def _refuse(self, request: Request) -> None:
        self._held.pop(request).refuse()

    def _send(self, request: Request, worker: int) -> None:
        if not 0 <= worker < len(self._workers):
            raise RunFailed(f"there is no worker {worker}")
        self._sent.add(request)
        sequence = self._held.pop(request)
        sequence.routed_ps = self._clock.now_ps
        self._workers[worker].submit(sequence)
