"""Saturation detectors, which decide when a gateway's queue may send a request to a worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from math import floor
from typing import Any, ClassVar, Literal, NamedTuple

from fairbench.core import Request
from fairbench.schedulers.base import Setup
from fairbench.schedulers.params import NoParams, NotNegativeInt, Positive, PositiveInt
from fairbench.schedulers.views import FleetView, WorkerLoad


class Detector(ABC):
    """A test of whether the cluster can take one more request.

    To add a saturation detector, subclass this class.

    A saturation detector reads no clock and no socket. The queue reports each sent and each
    finished request, and calls ``poll_workers`` at every event.
    """

    name: ClassVar[str]
    Params: ClassVar[Any]

    setup: Setup = Setup()

    def prepare(self, setup: Setup) -> None:
        """Store the facts in ``setup``; the host calls this method once, before the first request.

        The loads of the workers are in ``setup.fleet``.
        """
        self.setup = setup

    @property
    def fleet(self) -> FleetView:
        """The loads of the workers. Precondition: ``prepare`` was called."""
        assert self.setup.fleet is not None, f"{self.name} needs to see the workers"
        return self.setup.fleet

    def poll_workers(self, now_s: float) -> None:
        """Poll the loads of the workers if a poll is due."""

    @abstractmethod
    def has_room(self, now_s: float) -> bool:
        """Return whether the cluster can take one more request."""

    def wake_s(self, now_s: float) -> float | None:
        """Return the time (s) at which to call ``has_room`` even without an event, or None."""
        return None

    def on_sent(self, request: Request, worker: int) -> None:
        """Record that a request was sent to a worker."""

    def on_moved(self, request: Request, worker: int | None) -> None:
        """Record that a sent request moved to another worker, or to no worker (None)."""

    def on_finish(self, request: Request) -> None:
        """Handle the end of a request that was sent to a worker."""


class AlwaysRoom(Detector):
    """A detector that always returns True, so that only the engines' queues order requests."""

    name = "none"
    Params = NoParams

    def __init__(self, params: NoParams | None = None) -> None:
        pass

    def has_room(self, now_s: float) -> bool:
        return True


class _Load(NamedTuple):
    requests: int
    tokens: int


class Concurrency(Detector):
    """A detector that compares a worker's unfinished requests or prompt tokens with its capacity.

    The rules follow llm-d's concurrency-detector (llm-d-router @3fdd2e6). A worker's load is the
    number of its unfinished requests (``by=requests``), or of their prompt tokens (``by=tokens``),
    divided by its capacity. With ``by=larger`` (llm-d's ``hybrid``), the larger of the loads by
    requests and by tokens counts. The gateway sends requests while the mean load of the workers, as
    a fraction of capacity, is below 1. The detector learns of each start and end of a request
    immediately, without polling workers. A request's whole prompt counts as load until the request
    ends; in llm-d, only the uncached part counts, until the first token. Unlike llm-d's router,
    fairbench's router sees all workers, including full workers.
    """

    name = "concurrency"

    @dataclass(frozen=True)
    class Params:
        """Parameters: a worker's full load in ``requests`` or ``tokens``; ``by`` selects the unit.

        ``headroom`` is the number of requests beyond a full batch that may wait in a worker's own
        queue, 0 by default. A request in a worker's queue starts as soon as a running request ends.
        """

        requests: PositiveInt = 100
        tokens: PositiveInt = 1_000_000
        by: Literal["requests", "tokens", "larger"] = "requests"
        headroom: NotNegativeInt | None = None

    def __init__(self, params: Params) -> None:
        self.params = params
        self._requests = params.requests + (params.headroom or 0)
        # ``_under_way`` maps each sent and unfinished request to its worker.
        self._under_way: dict[Request, int | None] = {}
        self._loads: dict[int, _Load] = {}

    def has_room(self, now_s: float) -> bool:
        workers = self.fleet.workers()
        loads = [self._loads.get(worker, _Load(0, 0)) for worker in workers]
        by_requests = [load.requests / self._requests for load in loads]
        by_tokens = [load.tokens / self.params.tokens for load in loads]
        scores = {
            "requests": by_requests,
            "tokens": by_tokens,
            "larger": list(map(max, by_requests, by_tokens)),
        }[self.params.by]
        return sum(scores) < len(workers)

    def on_sent(self, request: Request, worker: int) -> None:
        self._under_way[request] = worker
        self._add(worker, 1, request.input_tokens)

    def on_moved(self, request: Request, worker: int | None) -> None:
        self._add(self._under_way[request], -1, -request.input_tokens)
        self._under_way[request] = worker
        self._add(worker, 1, request.input_tokens)

    def on_finish(self, request: Request) -> None:
        self._add(self._under_way.pop(request), -1, -request.input_tokens)

    def _add(self, worker: int | None, requests: int, tokens: int) -> None:
        if worker is None:
            return
        load = self._loads.get(worker, _Load(0, 0))
        self._loads[worker] = _Load(load.requests + requests, load.tokens + tokens)


class Utilization(Detector):
    """A detector that decides by the workers' waiting requests and KV usage at the last poll.

    The detector follows llm-d's default, the utilization-detector (llm-d-router @96391d1). The
    cluster can take a request while the mean score of its workers is below 1. A worker's score is
    the larger of two ratios: its waiting requests divided by ``waiting``, and its KV usage divided
    by ``kv_usage``. If the last poll is older than ``stale_s`` seconds, every worker's score is 1.
    With ``credit``, an option of llm-d, requests sent since the last poll count as waiting. Unlike
    llm-d's router, fairbench's router sees all workers, including full workers.
    """

    name = "utilization"

    @dataclass(frozen=True)
    class Params:
        """Parameters: the limits ``waiting`` (in requests) and ``kv_usage`` (fraction of the pool).

        ``poll_s`` is the time in seconds between two polls of all workers. The default of
        ``poll_s`` is 50 ms, as in llm-d.
        """

        constants: ClassVar[tuple[str, ...]] = ("kv_usage", "stale_s")

        waiting: Positive = 5.0
        kv_usage: Positive = 0.8
        poll_s: Positive = 0.05
        stale_s: Positive = 0.2
        credit: bool = False

    def __init__(self, params: Params) -> None:
        self.params = params
        self._polled_s = 0.0
        # ``_next_s`` is the time of the next poll in seconds, or None before the first poll.
        self._next_s: float | None = None
        self._loads: dict[int, WorkerLoad] = {}
        # ``_sent`` maps each worker to the number of requests sent to it since the last poll.
        self._sent: Counter[int] = Counter()

    def poll_workers(self, now_s: float) -> None:
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
            # A worker whose load is unknown counts as full.
            return 1.0
        waiting = load.queued + (self._sent[worker] if self.params.credit else 0)
        pool_tokens = self.setup.pool_tokens
        used = load.tokens / pool_tokens if pool_tokens else 0.0
        return max(waiting / self.params.waiting, used / self.params.kv_usage)

    def wake_s(self, now_s: float) -> float | None:
        """Return the time of the next poll, or None while no request is in flight."""
        busy = any(load.in_flight for load in self._loads.values())
        return self._next_s if busy or self._sent else None

    def on_sent(self, request: Request, worker: int) -> None:
        self._sent[worker] += 1
