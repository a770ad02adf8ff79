"""Finishes: the end of a request at each worker, computed for as few workers as needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbench.schedulers.routing.backlog import Backlog, TenantBacklog
from fairbench.schedulers.routing.finish_bounds import FinishBounds, Floats
from fairbench.schedulers.worker_sets import lowest, members

FEW = 16  # workers, that are looked at one by one


class Costs(NamedTuple):
    """The ``work`` of a request at ``workers`` (bits) that hold the same part of its prompt."""

    work: int
    workers: int


class Least:
    """The least finish seen so far, and the workers that have it, as bits."""

    __slots__ = ("finish", "workers")

    def __init__(self) -> None:
        self.finish, self.workers = inf, 0

    def see(self, finish: float, workers: int) -> None:
        """Record that these workers have this finish."""
        if finish < self.finish:
            self.finish, self.workers = finish, workers
        elif finish == self.finish:
            self.workers |= workers


class Finishes:
    """The finishes of one request at the workers. Sets of workers are bits.

    ``costs`` contains every worker once. ``idle`` are the workers with nothing under way, where
    requests of equal work finish alike. Without ``bounds`` every worker is examined.
    """

    def __init__(
        self,
        client: str,
        costs: Sequence[Costs],
        backlogs: Mapping[int, Backlog | TenantBacklog],
        idle: int,
        bounds: FinishBounds | None,
    ) -> None:
        self._client = client
        self._costs = costs
        self._backlogs = backlogs
        self._idle = idle
        self._bounds = bounds

    @property
    def floor(self) -> int:
        """The lower bound of every finish: the request's lowest cost at any worker."""
        return min(work for work, _ in self._costs)

    def least(self, among: int) -> Least:
        """Return the least finish in a non-empty set of workers."""
        if self._bounds is None or among.bit_count() <= FEW:
            return self._of_each(among)
        return self._of_few(among, self._bounds)

    def _of_each(self, among: int) -> Least:
        least = Least()
        for work, workers in self._costs:
            for worker in members(workers & among):
                least.see(self._backlogs[worker].finish(self._client, work), 1 << worker)
        return least

    def _of_few(self, among: int, bounds: FinishBounds) -> Least:
        """Return the best of few workers: idle workers are computed once for each cost."""
        least = Least()
        for work, workers in self._costs:
            if alike := workers & among & self._idle:
                least.see(self._backlogs[lowest(alike)].finish(self._client, work), alike)
        works = self._works(bounds.workers)
        left = bounds.finish(self._client, works)
        left[~_mask(among & ~self._idle, bounds.workers)] = inf
        while (bound := left[worker := int(left.argmin())]) <= least.finish and bound < inf:
            finish = self._backlogs[worker].finish(self._client, int(works[worker]))
            least.see(finish, 1 << worker)
            left[worker] = inf
        return least

    def _works(self, number: int) -> Floats:
        works = np.full(number, float(self._costs[-1].work))
        for work, workers in self._costs[:-1]:
            works[_mask(workers, number)] = work
        return works


def _mask(workers: int, number: int) -> NDArray[np.bool_]:
    packed = np.frombuffer(workers.to_bytes((number + 7) // 8, "little"), np.uint8)
    return np.unpackbits(packed, count=number, bitorder="little").astype(np.bool_)
