"""A closed-loop load generator: a number of concurrent requests and connections."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from fairbench.hardware.step_time import PS_PER_MS
from fairbench.sim.clock import ARRIVE, Clock

# From an answer to the client's next request: median of the 199 gaps of sglang-a100-fixed-c1-run1.
NEXT_REQUEST_MS = 1.1


class ClosedLoop:
    """Sends ``total`` requests by index, at most ``concurrency`` at a time.

    Each counts from when it was made, but is sent only once one of the ``connections`` is free;
    they are given out in the order of making.
    """

    def __init__(
        self,
        clock: Clock,
        total: int,
        concurrency: int,
        connections: int,
        send: Callable[[int], None],
    ) -> None:
        self.made_ps = [0] * total
        self._clock = clock
        self._total = total
        self._connections = connections
        self._send = send
        self._made = self._open = 0
        self._waiting: deque[int] = deque()
        for _ in range(min(concurrency, total)):
            self._make_at(clock.now_ps)

    def over(self, index: int) -> None:
        """Record that a request has been answered."""
        self._open -= 1
        if self._waiting:
            self._connect(self._waiting.popleft())
        if self._made < self._total:
            self._make_at(self._clock.now_ps + round(NEXT_REQUEST_MS * PS_PER_MS))

    def _make_at(self, time_ps: int) -> None:
        index, self._made = self._made, self._made + 1
        self._clock.at(time_ps, ARRIVE, 0, partial(self._make, index))

    def _make(self, index: int) -> None:
        self.made_ps[index] = self._clock.now_ps
        if self._open < self._connections:
            self._connect(index)
        else:
            self._waiting.append(index)

    def _connect(self, index: int) -> None:
        self._open += 1
        self._send(index)
