"""Base classes of routers that track the live workers, their cached prefixes, or their loads."""

from __future__ import annotations

from typing import Any

from fairbench.core import Prompt, Request, Segment
from fairbench.schedulers.base import Router
from fairbench.schedulers.location_tree import LocationTree
from fairbench.schedulers.parts.fleet import Fleet
from fairbench.schedulers.views import WorkerLoad

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def draw(number: int, stream: int = 0) -> float:
    """Return a pseudo-random number in [0, 1), the SplitMix64 hash of a request id and a stream."""
    mixed = (number * _GOLDEN + stream * 0xD1B54A32D192ED03 + _GOLDEN) & _MASK
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _MASK
    return ((mixed ^ mixed >> 31) >> 11) / 2**53


class FleetRouter(Router):
    """A base class of routers that track the live workers.

    A worker that joins again has an empty cache.
    """

    def __init__(self, workers: int) -> None:
        self._fleet = Fleet(workers)

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        self._fleet.end_request(request, worker)

    def on_worker_join(self, worker: int, now_s: float) -> None:
        self.on_worker_leave(worker, now_s)
        self._fleet.add_worker(worker)

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        self._fleet.remove_worker(worker)


class PrefixRouter(FleetRouter):
    """A router that tracks the prefixes in each live worker's cache, including evictions."""

    wants_evictions = True
    _tree: LocationTree[Any]

    def on_evict(self, prefix: Prompt, evicted_tokens: int, worker: int, now_s: float) -> None:
        self._tree.evict(prefix, evicted_tokens, worker)

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        if worker in self._fleet:
            self._fleet.remove_worker(worker)
            self._tree.purge(worker)
            self.on_worker_left(worker)

    def on_worker_left(self, worker: int) -> None:
        """Delete the subclass's own data about a worker that has left."""


class CountingRouter(FleetRouter):
    """A router that counts workers' requests in flight, and reads all other loads from the fleet.

    A simulated fleet reports loads without delay. Real routers poll workers every 50 ms to 5 s.
    """

    def in_flight_by_worker(self) -> dict[int, int]:
        """Return the number of unfinished requests sent to each live worker."""
        return {worker: self._fleet.unfinished_at(worker) for worker in self._fleet.workers}

    def reported_load(self, worker: int) -> WorkerLoad:
        """Return the load that the worker reports or, without a report, the requests in flight."""
        if self.setup.fleet is None:
            return WorkerLoad(self._fleet.unfinished_at(worker), 0)
        return self.setup.fleet.load(worker)

    def queued_at(self, worker: int) -> int:
        """Return the number of requests queued at the worker or, if unknown, in flight there."""
        load = self.reported_load(worker)
        return load.in_flight if load.queued is None else load.queued

    def usage(self, worker: int) -> float | None:
        """Return the fraction of the worker's KV pool in use, or None if unknown."""
        load = self.reported_load(worker)
        if load.running is None or not self.setup.pool_tokens:
            return None
        return load.tokens / self.setup.pool_tokens


def any_of(workers: list[int], request: Request) -> int:
    """Return a pseudo-random worker; a request gets the same worker in every run."""
    return workers[int(draw(request.request_id) * len(workers))]


def two_of(workers: list[int], request: Request) -> tuple[int, int]:
    """Return two different random workers, or the only worker twice."""
    count = len(workers)
    first = int(draw(request.request_id) * count)
    step = 1 + int(draw(request.request_id, 1) * (count - 1)) if count > 1 else 0
    return workers[first], workers[(first + step) % count]


def lowest(costs: dict[int, float]) -> list[int]:
    """Return the workers with the lowest cost."""
    least = min(costs.values())
    return [worker for worker, cost in costs.items() if cost == least]
