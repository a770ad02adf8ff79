"""Closed-loop load generators, which keep a fixed number of requests in flight."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from fairbench.engine.clock import ARRIVE, Clock
from fairbench.hardware.gpu_time import PS_PER_MS
from fairbench.metrics.records import Floats

# A client sends its next request ``NEXT_REQUEST_MS`` after an answer, the median pause in the run
# sglang-a100-fixed-c1-run1.
NEXT_REQUEST_MS = 1.1
# While a closed-loop load generator counts the tokens of an answered prompt, its event loop neither
# reads nor sends. The time to count tokens was fitted to the gaps between requests in two SGLang
# runs (one request at a time, prompts of 401 to 12,305 tokens).
COUNT_MS, COUNT_TOKEN_MS = 0.3, 0.002
# A client counts as limited if, once its number of requests in flight has reached its maximum, the
# number stays there for at least the fraction ``HELD_SHARE`` of the time.
HELD_SHARE, NEARLY = 0.9, 0.99


class Limit(NamedTuple):
    """A client's limit on requests in flight, and the first request that reached the limit."""

    concurrency: int
    first: int


def observed_limit(submit_s: Floats, latency_s: Floats) -> Limit | None:
    """Return an open-loop client's limit on requests in flight, or None if no limit delayed it.

    At its limit, a client sends the next request only when an answer arrives. The measured sending
    times of a limited client depend on the server, so a replay must not repeat these times.

    Args:
        submit_s: Sorted times of sending in seconds, shape (n_requests,).
        latency_s: Latencies in seconds, shape (n_requests,), with NaN for requests without an
            answer.
    """
    served = np.flatnonzero(~np.isnan(latency_s))
    ends_s = submit_s[served] + latency_s[served]
    # If an answer and a new request have equal times, the answer is counted first.
    times_s = np.concatenate([ends_s, submit_s[served]])
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


class EventLoop:
    """The thread of a load generator that counts the tokens of each answered prompt.

    Answers that arrive while the thread counts tokens are read together after the count. After
    counting the prompt tokens of these answers, the thread calls ``go_on`` for each answer.
    ``read_ps`` holds the time (ps) at which the answer of each request was read.
    """

    def __init__(self, clock: Clock, tokens: Sequence[int], go_on: Callable[[], None]) -> None:
        self.read_ps = [0] * len(tokens)
        self._clock = clock
        self._tokens = tokens
        self._go_on = go_on
        self._unread: list[int] = []
        self._starts_ps: list[int] = []
        self._ends_ps: list[int] = [0]

    def answer(self, number: int) -> None:
        """Record an answer that arrives at the load generator."""
        self._unread.append(number)
        if self._ends_ps[-1] <= self._clock.now_ps:
            self._count()

    def reads_at(self, time_ps: int) -> int:
        """Return the time (ps) at which the client reads a token that arrives at ``time_ps``."""
        return max(time_ps, self._ends_ps[bisect_right(self._starts_ps, time_ps)])

    def _count(self) -> None:
        batch, self._unread = self._unread, []
        end_ps = self._clock.now_ps
        self._starts_ps.append(end_ps)
        for number in batch:
            self.read_ps[number] = end_ps
            end_ps += round((COUNT_MS + COUNT_TOKEN_MS * self._tokens[number]) * PS_PER_MS)
        self._ends_ps.append(end_ps)
        self._clock.at(end_ps, ARRIVE, 0, partial(self._counted, len(batch)))

    def _counted(self, answers: int) -> None:
        for _ in range(answers):
            self._go_on()
        if self._unread:
            self._count()


class ClosedLoop:
    """A load generator that sends ``total`` requests, with at most ``concurrency`` in flight.

    The latency of a request counts from the request's creation. Requests are sent in order of
    creation, each as soon as one of the ``connections`` is free. If ``counted`` (the tokens of each
    prompt) is given, the load generator counts an answered prompt's tokens before the next request.
    """

    def __init__(
        self,
        clock: Clock,
        total: int,
        concurrency: int,
        connections: int,
        send: Callable[[int], None],
        counted: Sequence[int] | None = None,
    ) -> None:
        self.made_ps = [0] * total
        self.thread = EventLoop(clock, counted, self._go_on) if counted is not None else None
        self._clock = clock
        self._total = total
        self._connections = connections
        self._send = send
        self._made = self._open = 0
        self._waiting: deque[int] = deque()
        for _ in range(min(concurrency, total)):
            self._make_at(clock.now_ps)

    def over(self, index: int) -> None:
        """Record that a request was answered."""
        if self.thread is None:
            self._go_on(NEXT_REQUEST_MS)
        else:
            self.thread.answer(index)

    def _go_on(self, next_ms: float = 0.0) -> None:
        """Give an ended request's connection to a waiting request, and create a new request."""
        self._open -= 1
        if self._waiting:
            self._connect(self._waiting.popleft())
        if self._made < self._total:
            self._make_at(self._clock.now_ps + round(next_ms * PS_PER_MS))

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
