"""Closed-loop load generators: a number of concurrent requests and connections."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from fairbench.hardware.gpu_time import PS_PER_MS
from fairbench.metrics.records import Floats
from fairbench.sim.clock import ARRIVE, Clock

# From an answer to the client's next request: median of the 199 gaps of sglang-a100-fixed-c1-run1.
NEXT_REQUEST_MS = 1.1
# A client is at its limit if, once reached, the limit holds for this share of the time.
HELD_SHARE, NEARLY = 0.9, 0.99


class Limit(NamedTuple):
    """A client's limit of requests in flight, and the first request by which it was reached."""

    concurrency: int
    first: int


def observed_limit(submit_s: Floats, latency_s: Floats) -> Limit | None:
    """Return the limit that held back the client of an open loop; None if nothing held it back.

    A client with so many connections sends its next request when an answer comes. Then the
    measured times of sending depend on the server, and a replay must not repeat them.

    Args:
        submit_s: Sorted times of sending in seconds, shape (n_requests,).
        latency_s: Latencies in seconds, shape (n_requests,); NaN where there is no answer.
    """
    served = np.flatnonzero(~np.isnan(latency_s))
    ends_s = submit_s[served] + latency_s[served]
    times_s = np.concatenate([ends_s, submit_s[served]])  # at equal times, ends come first
    change = np.repeat([-1, 1], len(served))
    order = np.argsort(times_s, kind="stable")
    times_s, in_flight = times_s[order], np.cumsum(change[order])
    if not len(served):
        return None
    most = int(in_flight.max())
    start = int(np.argmax(in_flight == most))
    sending = (times_s >= times_s[start]) & (times_s <= submit_s[-1])
    gaps_s = np.diff(times_s, append=times_s[-1])[sending]
    span_s = gaps_s.sum()
    held_s = gaps_s[in_flight[sending] >= NEARLY * most].sum()
    if span_s < submit_s[-1] / 2 or held_s < HELD_SHARE * span_s:
        return None
    return Limit(most, int(np.searchsorted(submit_s, times_s[start])))


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
