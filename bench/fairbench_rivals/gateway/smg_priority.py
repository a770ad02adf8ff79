"""smg's priority scheduler: four classes with reserved slots, queues, time limits and aging."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf
from typing import NamedTuple

from fairbench.core import Request
from fairbench.schedulers.base import WaitingView
from fairbench.schedulers.params import PositiveInt
from fairbench_rivals.gateway.class_queues import ClassQueues

TICK_S = 5.0


class Rules(NamedTuple):
    """The rules of a priority class: slots, limits on queue length and waiting time, and aging."""

    name: str
    floor: int  # minimum number of slots reserved for the priority class
    share: float  # fraction of all slots that is reserved for the priority class
    queue: int
    timeout_s: float
    starved_s: float


CLASSES: Mapping[int, Rules] = {
    2: Rules("system", 32, 0.0, 64, 30.0, 5.0),
    1: Rules("interactive", 128, 0.25, 256, 30.0, 5.0),
    0: Rules("default", 0, 0.10, 512, 60.0, 30.0),
    -1: Rules("bulk", 0, 0.0, 1024, 300.0, 120.0),
}
"""The rules of each priority class, keyed by priority, the highest first."""

# priority classes that go first after a long wait (``starved_s``), in order of precedence
AGING = (-1, 0, 1)


class SmgPriority(ClassQueues):
    """A policy that serves higher classes first, and reserves slots at the workers for each class.

    The rules follow smg-project/smg @f8daa883, model_gateway/src/middleware/scheduler. The classes
    are system (priority 2 and above), interactive (1), default (0) and bulk (-1 and below). Each
    class reserves max(floor, share x slots) slots. A class whose first request has waited for too
    long is served before other classes, and ignores reservations. If several classes have waited
    too long, the class with the lowest priority goes first. A request is refused if the queue of
    its class is full, or after the time limit of its class. The policy does not distinguish
    clients.

    If a request of the class ``system`` or ``interactive`` finds no slot, smg cancels a request of
    a lower class that has no first token yet. Gateways of fairbench cannot cancel a sent request,
    so the request of the higher class waits.
    """

    name = "smg-priority"
    detector = "none"
    work_conserving = False

    @dataclass(frozen=True)
    class Params:
        """``slots`` is the maximum number of running requests at a worker."""

        slots: PositiveInt = 256

    def __init__(self, params: Params) -> None:
        super().__init__()
        self.params = params
        self._used = dict.fromkeys(CLASSES, 0)  # number of used slots of each priority class
        self._sent: set[Request] = set()

    def class_of(self, request: Request) -> int:
        return max(min(CLASSES), min(max(CLASSES), self.priority_of(request)))

    def accepts(self, request: Request, now_s: float) -> bool:
        queue = self.queues.get(self.class_of(request), {})
        return len(queue) < CLASSES[self.class_of(request)].queue

    def given_up(self, now_s: float) -> Collection[Request]:
        """Return the requests that have waited longer than their priority class allows."""
        return [
            request
            for number, queue in self.queues.items()
            for request, since_s in queue.items()
            if now_s - since_s >= CLASSES[number].timeout_s
        ]

    def next_class(self, waiting: Sequence[int], now_s: float) -> int | None:
        free = self._slots() - sum(self._used.values())
        if free <= 0:
            return None
        for number in AGING:
            first_s = next(iter(self.queues.get(number, {}).values()), inf)
            if now_s - first_s >= CLASSES[number].starved_s:
                return number
        return next((number for number in waiting if free > self._kept_from(number)), None)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        super().on_admitted(request, extend_tokens, recompute)
        self._used[self.class_of(request)] += 1
        self._sent.add(request)

    def on_finish(self, request: Request) -> None:
        super().on_finish(request)
        if request in self._sent:
            self._sent.remove(request)
            self._used[self.class_of(request)] -= 1

    def wake_s(self, view: WaitingView, now_s: float) -> float | None:
        ends_s = [
            next(iter(queue.values())) + CLASSES[number].timeout_s
            for number, queue in self.queues.items()
            if queue
        ]
        return min([TICK_S * (floor(now_s / TICK_S) + 1), *ends_s])

    def _slots(self) -> int:
        assert self.setup.fleet is not None, f"{self.name} needs to see the workers"
        return self.params.slots * len(self.setup.fleet.workers())

    def _kept_from(self, number: int) -> int:
        """Return how many unused slots are reserved for classes above ``number``."""
        slots = self._slots()
        kept = 0
        for higher, rules in CLASSES.items():
            if higher <= number:
                break
            reserved = max(rules.floor, ceil(rules.share * slots))
            kept += max(0, reserved - self._used[higher])
        return kept
