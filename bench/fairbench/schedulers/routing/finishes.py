"""Finishes: the end of a request at each worker, computed for as few workers as needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fairbench.schedulers.worker_sets import lowest, members

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Values of work over weight at which sums are kept. Beyond the ends the bound is loose but valid.
LEVELS: Floats = np.concatenate(([0.0], 2.0 ** np.arange(-4, 26, 1 / 16)))
_WIDTHS: Floats = np.diff(LEVELS)
ROUNDING = 1e-6  # of a bound: far more than sums of floats are off
FEW = 16  # workers, that are examined one by one


class FinishBounds:
    """Lower bounds of ``Backlog.finish`` for every worker, computed with a few array operations.

    A request of a client with backlog m there, of work s, is done at s + G((m + s) / weight), where
    G(level) = sum of min(backlog_j, level weight_j) over all clients there. G is concave and grows,
    so that a chord between two levels is below it. Kept are its values at ``LEVELS``, in whole
    tokens, rounded down: requests that come and go leave no remainder. A change takes O(levels), a
    query O(workers), both in numpy; memory is O(workers x levels).
    """

    def __init__(self, weight: Callable[[str], float], workers: int) -> None:
        """Create empty bounds. ``workers`` is the highest worker number plus one."""
        self.workers = workers
        self._weight = weight
        self._got = np.zeros((workers, len(LEVELS)), np.int64)
        self._numbers = np.arange(workers)
        self._of_client: dict[str, dict[int, int]] = {}  # its backlogs by worker
        # What LEVELS let through, by weight, and by client as it was when its first request came.
        self._of_weight: dict[float, Integers] = {}
        self._caps: dict[str, Integers] = {}

    def set(self, worker: int, client: str, work: int) -> None:
        at = self._of_client.setdefault(client, {})
        if client not in self._caps:
            self._caps[client] = self._let_through(self._weight(client))
        caps, before = self._caps[client], at.pop(worker, 0)
        self._got[worker] += np.minimum(caps, work) - np.minimum(caps, before)
        if work:
            at[worker] = work
        elif not at:
            del self._of_client[client], self._caps[client]

    def finish(self, client: str, works: Floats) -> Floats:
        """Return, by worker, a lower bound on the finish of a client's request of ``works``."""
        levels = works.copy()
        if at := self._of_client.get(client):
            levels[list(at)] += list(at.values())
        levels /= self._weight(client)
        place = np.searchsorted(LEVELS, levels, side="right") - 1
        np.minimum(place, len(_WIDTHS) - 1, out=place)
        low = self._got[self._numbers, place]
        high = self._got[self._numbers, place + 1]
        along = np.minimum((levels - LEVELS[place]) / _WIDTHS[place], 1.0)
        bounds: Floats = (works + low + along * (high - low)) * (1 - ROUNDING)
        return bounds

    def _let_through(self, weight: float) -> Integers:
        if weight not in self._of_weight:
            self._of_weight[weight] = np.floor(LEVELS * weight).astype(np.int64)
        return self._of_weight[weight]


class Backlog(Protocol):
    """The unfinished work at a worker."""

    def finish(self, client: str, work: int) -> float:
        """Return when ``work`` more of a client would end under fair sharing from now on."""


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
        if finish < self.finish:
            self.finish, self.workers = finish, workers
        elif finish == self.finish:
            self.workers |= workers


@dataclass(slots=True)
class Finishes:
    """The finishes of one request at the workers. Sets of workers are bits.

    ``costs`` contains every worker once. ``idle`` are the workers with nothing under way, where
    requests of equal work finish alike. Without ``bounds`` every worker is examined.
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
