"""Instants of several queues, each with its own, and what has come by them."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fairbench.metrics.records import Flags, Floats, Ints


class Instants:
    """The different instants ``at_s`` of each of the queues ``queue`` (any integers)."""

    def __init__(self, queue: Ints, at_s: Floats) -> None:
        self._times = np.unique(at_s)
        self._stride = len(self._times) + 2
        # One more for each queue, after all of its instants, where what comes too late is put.
        late = np.unique(queue) * self._stride + len(self._times)
        self._keys = np.unique(np.concatenate([self._key(queue, at_s, "left"), late]))

    def _key(self, queue: Ints, at_s: Floats, side: Literal["left", "right"]) -> Ints:
        keys: Ints = queue * self._stride + np.searchsorted(self._times, at_s, side)
        return keys

    def fall_within(self, queue: Ints, start_s: Floats, end_s: Floats) -> Flags:
        """Whether one of a queue's instants is in (start, end]."""
        first = np.searchsorted(self._keys, self._key(queue, start_s, "right"))
        after = np.searchsorted(self._keys, self._key(queue, end_s, "right"))
        within: Flags = first < after
        return within

    def landed(self, queue: Ints, at_s: Floats, amount: Ints | Floats) -> Floats:
        """Amounts by the first instant of their queue at which they have come."""
        count = len(self._keys)
        if not count:
            return np.zeros(0)
        place = np.searchsorted(self._keys, self._key(queue, at_s, "left"))
        known = (place < count) & (
            self._keys[np.minimum(place, count - 1)] // self._stride == queue
        )
        return np.bincount(place[known], weights=amount[known], minlength=count).astype(np.float64)

    def running(self, landed: Floats) -> Floats:
        """What has come by each instant of its queue, and in the end: sums of what has landed."""
        total = np.cumsum(landed)
        queue = self._keys // self._stride
        begin = np.flatnonzero(np.diff(queue, prepend=-1))
        before = np.repeat((total - landed)[begin], np.diff(begin, append=len(queue)))
        sums: Floats = total - before
        return sums
