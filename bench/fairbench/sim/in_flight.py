"""Clients that watch what is their own: the next program begins when something has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from fairbench.workloads.programs import Job
from fairbench.workloads.reactions import Ended, Reaction

Start: TypeAlias = Callable[[Job, Callable[[], None]], None]
"""Begins a program, and calls back at its end."""


class InFlight:
    """Lets so many programs run at a time; others wait their turn, in order of arrival."""

    def __init__(self, most: int, start: Start) -> None:
        self._most = most
        self._start = start
        self._running = 0
        self._beginning = False
        self._waiting: deque[Job] = deque()

    def arrive(self, program: Job) -> None:
        """Begin it now, or once there is room."""
        self._waiting.append(program)
        self._begin()

    def _begin(self) -> None:
        """Begin what there is room for."""
        if self._beginning:  # one that began has ended at once, refused: the loop below goes on
            return
        self._beginning = True
        while self._waiting and self._running < self._most:
            self._running += 1
            self._start(self._waiting.popleft(), self._ended)
        self._beginning = False

    def _ended(self) -> None:
        self._running -= 1
        self._begin()


class Reacting:
    """Holds programs back until the ``reaction`` to a request that ends says that all may go.

    One begins whenever none is under way, to have something that ends.
    """

    def __init__(self, reaction: Reaction, start: Start) -> None:
        self._reaction = reaction
        self._start = start
        self._running = 0
        self._beginning = False
        self._waiting: deque[Job] = deque()

    def arrive(self, program: Job) -> None:
        """Begin it now if nothing is under way."""
        self._waiting.append(program)
        self._keep_one()

    def heard(self, ended: Ended) -> None:
        """A request of its own has ended."""
        if self._reaction(ended):
            going, self._waiting = self._waiting, deque()
            for program in going:
                self._begin(program)

    def _keep_one(self) -> None:
        if self._beginning:  # one that began has ended at once, refused: the loop below goes on
            return
        self._beginning = True
        while self._waiting and not self._running:
            self._begin(self._waiting.popleft())
        self._beginning = False

    def _begin(self, program: Job) -> None:
        self._running += 1
        self._start(program, self._over)

    def _over(self) -> None:
        self._running -= 1
        self._keep_one()
