"""Finish bounds: the earliest end of a request at each worker, for all workers at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


Integers = NDArray[np.int64]


# Values of work over weight at which sums are kept. Beyond the ends the bound is loose but valid.
LEVELS: Floats = np.concatenate(([0.0], 2.0 ** np.arange(-4, 26, 1 / 16)))


_WIDTHS: Floats = np.diff(LEVELS)


ROUNDING = 1e-6  # relative margin of a bound: far more than the rounding errors of sums


class FinishBounds:
    """Lower bounds of ``Backlog.finish`` for every worker, computed with a few array operations.

    A request with work s, of a client with backlog m at the worker, ends at s + G((m + s) /
    weight), where G(level) = sum of min(backlog_j, level weight_j) over all clients there. G is
    concave and increasing, so a chord between two levels lies below it. The values at ``LEVELS``
    are stored in whole tokens, rounded down, so that arriving and ending requests leave no rounding
    error. A change takes O(levels), a query O(workers), both in numpy; memory is O(workers x
    levels).
    """

    def __init__(self, weight: Callable[[str], float], workers: int) -> None:
        """Create empty bounds. ``workers`` is the highest worker number plus one."""
        self.workers = workers
        self._weight = weight
        self._got = np.zeros((workers, len(LEVELS)), np.int64)
        self._numbers = np.arange(workers)
        self._of_client: dict[str, dict[int, int]] = {}  # the client's backlogs by worker
        # Limits at LEVELS, by weight, and by client with its weight at its first request.
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
