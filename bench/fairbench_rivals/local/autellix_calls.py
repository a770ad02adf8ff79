"""Autellix's process table: the service and waiting times of programs and calls, and promotions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf

from fairbench.core import Request
from fairbench.schedulers.program_states import ProgramStates


@dataclass(slots=True)
class ProgramTimes:
    """A row of Autellix's process table: service and waiting time of a program's finished calls."""

    service_s: float = 0.0
    waited_s: float = 0.0
    # the program's unfinished calls
    calls: dict[Request, CallTimes] = field(default_factory=dict)


@dataclass(slots=True)
class CallTimes:
    """An unfinished call.

    ``since_s`` is the time in seconds since which the call has been waiting, or None while it runs.
    A promotion of the call resets ``waited_s`` and ``busy_s``, but not the fields ``total_*``.
    """

    started_at_s: float  # service (s) of the program before this call arrived
    queue: int
    place: int
    quantum_s: float
    since_s: float | None
    waited_s: float = 0.0
    busy_s: float = 0.0
    total_waited_s: float = 0.0
    total_busy_s: float = 0.0
    # time in seconds at which the call is promoted to the first queue if it still waits
    promoted_at_s: float = inf

    def end_wait(self, now_s: float) -> None:
        if self.since_s is not None:
            self.waited_s += now_s - self.since_s
            self.total_waited_s += now_s - self.since_s
            self.since_s = None


class Promotions:
    """The times at which each program's waiting time will reach ``beta`` times its service time.

    ``heap`` holds the times at which calls move up. A time that proves too early is replaced by a
    later time.
    """

    def __init__(self, beta: float, programs: ProgramStates[ProgramTimes]) -> None:
        self.heap: list[tuple[float, int, int, Request]] = []
        self._beta = beta
        self._programs = programs
        self._announced = count()

    def time_s(self, request: Request, call: CallTimes) -> float:
        """Return the time at which the program will have waited ``beta`` times its service time."""
        if not (call.queue and self._beta) or call.since_s is None:
            return inf
        program = self._programs[request]
        wanted_s = self._beta * (program.service_s + call.busy_s)
        return call.since_s + wanted_s - program.waited_s - call.waited_s

    def expect(self, request: Request, call: CallTimes) -> None:
        """Add a heap entry for a call unless the call has an entry at its due time or earlier."""
        at_s = self.time_s(request, call)
        if at_s < call.promoted_at_s:
            call.promoted_at_s = at_s
            self._announce(request, call)

    def due_calls(
        self, now_s: float, calls: Mapping[Request, CallTimes]
    ) -> Iterator[tuple[Request, CallTimes]]:
        """Yield, by due time, calls whose program has waited ``beta`` times its service time."""
        while self.heap and self.heap[0][0] <= now_s:
            at_s, *_, request = heappop(self.heap)
            call = calls.get(request)
            if call is None or call.since_s is None or not call.queue:
                continue
            call.promoted_at_s = self.time_s(request, call)
            if call.promoted_at_s > at_s:
                self._announce(request, call)
            else:
                yield request, call

    def _announce(self, request: Request, call: CallTimes) -> None:
        heappush(self.heap, (call.promoted_at_s, call.place, next(self._announced), request))
