"""Utilization: how full the workers were when they were last polled."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import floor

from fairbench.core import Request
from fairbench.schedulers.gateway.saturation.detector import Detector
from fairbench.schedulers.params import Positive
from fairbench.schedulers.views import WorkerLoad


class Utilization(Detector):
    """Sends requests while the workers had room at the last poll.

    The rules are those of llm-d's utilization-detector, its default (llm-d-router @96391d1): it
    releases requests while the workers' mean score is below 1. A score is the larger of the waiting
    requests over ``waiting`` and the KV usage over ``kv_usage``, and 1 if the numbers are older
    than ``stale_s``. All arrivals between two polls are sent together or wait together. ``credit``
    counts requests sent since the poll as waiting, which is an option of llm-d. llm-d's filter of
    full endpoints is left out: the router sees all workers.
    """

    name = "utilization"

    @dataclass(frozen=True)
    class Params:
        """Parameters: a worker is full at ``waiting`` requests or a ``kv_usage`` of the pool.

        ``poll_s`` is the time between two polls of all workers (llm-d's default: 50 ms).
        """

        waiting: Positive = 5.0
        kv_usage: Positive = 0.8
        poll_s: Positive = 0.05
        stale_s: Positive = 0.2
        credit: bool = False

    def __init__(self, params: Params) -> None:
        self.params = params
        self._polled_s = 0.0
        self._next_s: float | None = None  # None means not polled yet
        self._loads: dict[int, WorkerLoad] = {}
        self._sent: Counter[int] = Counter()  # requests sent since then

    def look(self, now_s: float) -> None:
        if self._next_s is not None and now_s < self._next_s:
            return
        poll_s = self.params.poll_s
        self._loads = {worker: self.fleet.load(worker) for worker in self.fleet.workers()}
        self._sent.clear()
        self._polled_s = now_s
        turn = floor(now_s / poll_s) + 1
        self._next_s = turn * poll_s if turn * poll_s > now_s else (turn + 1) * poll_s

    def has_room(self, now_s: float) -> bool:
        workers = self.fleet.workers()
        stale = now_s - self._polled_s > self.params.stale_s
        scores = [1.0 if stale else self._score(worker) for worker in workers]
        return sum(scores) < len(workers)

    def _score(self, worker: int) -> float:
        load = self._loads.get(worker)
        if load is None or load.queued is None:
            return 1.0  # unknown counts as full
        waiting = load.queued + (self._sent[worker] if self.params.credit else 0)
        pool_tokens = self.setup.pool_tokens
        used = load.tokens / pool_tokens if pool_tokens else 0.0
        return max(waiting / self.params.waiting, used / self.params.kv_usage)

    def wake_s(self, now_s: float) -> float | None:
        """Return the time of the next poll; None while nothing is in flight."""
        busy = any(load.in_flight for load in self._loads.values())
        return self._next_s if busy or self._sent else None

    def on_sent(self, request: Request, worker: int) -> None:
        self._sent[worker] += 1
