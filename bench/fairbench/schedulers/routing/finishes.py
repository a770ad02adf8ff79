"""Finishes: the end of a request at each worker, computed for as few workers as needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fairbench.schedulers.routing.finish_bounds import FinishBounds, Floats
from fairbench.schedulers.worker_sets import lowest, members

FEW = 16  # number of workers that are examined one by one


class Backlog(Protocol):
    """The unfinished work at a worker."""

    def finish(self, client: str, work: int) -> float:
        """Return when ``work`` more of a client would end under fair sharing from now on."""


class Costs(NamedTuple):
    """The ``work`` of a request at ``workers`` (bits) that hold the same part of its prompt."""

    work: int
    workers: int


class Least:
    """The least finish so far, and the workers that have it, as bits."""

    __slots__ = ("finish", "workers")

    def __init__(self) -> None:
        self.finish, self.workers = inf, 0

    def see(self, finish: float, workers: int) -> None:
        if finish < self.finish:
            self.finish, self.workers = finish, workers
        elif finish == self.finish:
            self.workers |= workers


@dataclass(slots=True)
class Finishes:
    """The finishes of one request at the workers. Sets of workers are bits.

    ``costs`` contains every worker once. ``idle`` are the workers without work in progress, where
    requests of equal work end at the same time. Without ``bounds`` every worker is examined.
    """

    client: str
    costs: Sequence[Costs]
    backlogs: Mapping[int, Backlog]
    idle: int
    bounds: FinishBounds | None

    @property
    def floor(self) -> int:
        """The lower bound of every finish: the request's lowest cost at any worker."""
        return min(work for work, _ in self.costs)

    def least(self, among: int) -> Least:
        """Return the least finish in a non-empty set of workers."""
        if self.bounds is None or among.bit_count() <= FEW:
            return self._of_each(among)
        return self._of_few(among, self.bounds)

    def _of_each(self, among: int) -> Least:
        least = Least()
        for work, workers in self.costs:
            for worker in members(workers & among):
                least.see(self.backlogs[worker].finish(self.client, work), 1 << worker)
        return least

    def _of_few(self, among: int, bounds: FinishBounds) -> Least:
        """Return the best of few workers: idle workers are computed once for each cost."""
        least = Least()
        for work, workers in self.costs:
            if alike := workers & among & self.idle:
                least.see(self.backlogs[lowest(alike)].finish(self.client, work), alike)
        works = self._works(bounds.workers)
        left = bounds.finish(self.client, works)
        left[~_mask(among & ~self.idle, bounds.workers)] = inf
        while (bound := left[worker := int(left.argmin())]) <= least.finish and bound < inf:
            finish = self.backlogs[worker].finish(self.client, int(works[worker]))
            least.see(finish, 1 << worker)
            left[worker] = inf
        return least

    def _works(self, number: int) -> Floats:
        works = np.full(number, float(self.costs[-1].work))
        for work, workers in self.costs[:-1]:
            works[_mask(workers, number)] = work
        return works


def _mask(workers: int, number: int) -> NDArray[np.bool_]:
    packed = np.frombuffer(workers.to_bytes((number + 7) // 8, "little"), np.uint8)
    return np.unpackbits(packed, count=number, bitorder="little").astype(np.bool_)
