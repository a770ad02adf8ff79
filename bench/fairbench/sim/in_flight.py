"""Clients of a simulation: how many programs they have in flight, reactions, and deadlines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

from fairbench.targets import NOT_DUE, Due, RequestCosts, alone
from fairbench.workloads.plan import ClientPlan
from fairbench.workloads.programs.base import Job
from fairbench.workloads.reactions import Ended, Reaction

Start: TypeAlias = Callable[[Job, Callable[[], None]], None]
"""A function that begins a program, and calls back at its end."""


class InFlight:
    """A limit on the running programs of a client; others wait in order of arrival."""

    def __init__(self, most: int, start: Start) -> None:
        self._most = most
        self._start = start
        self._running = 0
        self._beginning = False
        self._waiting: deque[Job] = deque()

    def arrive(self, program: Job) -> None:
        """Start the program now, or once there is room."""
        self._waiting.append(program)
        self._begin()

    def _begin(self) -> None:
        if self._beginning:  # a program that began ended at once, refused: the loop below continues
            return
        self._beginning = True
        while self._waiting and self._running < self._most:
            self._go(self._waiting.popleft())
        self._beginning = False

    def _go(self, program: Job) -> None:
        self._running += 1
        self._start(program, self._ended)

    def _ended(self) -> None:
        self._running -= 1
        self._begin()


class Reacting(InFlight):
    """Runs one program until the ``reaction`` to an end releases all others."""

    def __init__(self, reaction: Reaction, start: Start) -> None:
        super().__init__(1, start)
        self._reaction = reaction

    def heard(self, ended: Ended) -> None:
        """React to the end of one of the client's own requests."""
        if self._reaction(ended):
            going, self._waiting = self._waiting, deque()
            for program in going:
                self._go(program)


class Deadlines:
    """The deadlines of requests, computed from the targets of their clients' plans.

    A target that is a multiple of the latency alone assumes an answer of ``max_new_tokens`` tokens.
    The actual length is unknown in advance, whereas metrics use the actual length.
    """

    def __init__(self, plans: Iterable[ClientPlan], costs: RequestCosts | None) -> None:
        self._targets = {plan.client: plan.targets for plan in plans if plan.targets}
        self._costs = costs

    def due(self, client: str, arrival_s: float, input_tokens: int, max_new_tokens: int) -> Due:
        """Return the deadlines of a request of this client that arrives at ``arrival_s``."""
        if client not in self._targets:
            return NOT_DUE
        targets = self._targets[client]
        lone = None
        if targets.of_alone:
            assert self._costs is not None, "multiples need a timing profile"
            lone = alone(self._costs, input_tokens, max_new_tokens)
        return targets.due(arrival_s, lone, max_new_tokens)
