"""Instants of several queues, and the amounts that had arrived by each instant."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from fairbench.metrics.records import Flags, Floats, Ints

Side: TypeAlias = Literal["left", "right"]


class Instants:
    """The distinct instants ``at_s`` of each queue in ``queue`` (any integers).

    What is asked of many rows is asked with the times of their stretches, and ``stretch`` of each.
    Rows queue after queue are found faster.
    """

    def __init__(self, queue: Ints, at_s: Floats) -> None:
        self._times = np.unique(at_s)
        self._stride = len(self._times) + 2
        # An extra slot for each queue, after its instants, takes late events.
        late = np.unique(queue) * self._stride + len(self._times)
        every = np.arange(len(queue))
        self._keys = np.unique(np.concatenate([self._key(queue, at_s, every, "left"), late]))
        self._queues = self._keys // self._stride

    def _key(self, queue: Ints, at_s: Floats, stretch: Ints, side: Side) -> Ints:
        keys: Ints = queue * self._stride + np.searchsorted(self._times, at_s, side)[stretch]
        return keys

    def fall_within(self, queue: Ints, start_s: Floats, end_s: Floats, stretch: Ints) -> Flags:
        """Return whether one of a queue's instants lies in (start, end].

        Args:
            queue: Queue of each row, shape (n_rows,).
            start_s: Start of each stretch, in seconds, shape (n_stretches,).
            end_s: End of each stretch, in seconds, shape (n_stretches,).
            stretch: Index of each row's stretch, shape (n_rows,).

        Returns:
            Flags, shape (n_rows,).
        """
        first = places(self._keys, self._key(queue, start_s, stretch, "right"))
        after = places(self._keys, self._key(queue, end_s, stretch, "right"))
        within: Flags = first < after
        return within

    def landed(self, queue: Ints, at_s: Floats, stretch: Ints, amount: Ints | Floats) -> Floats:
        """Return the amounts by the first instant of their queue after their arrival."""
        count = len(self._keys)
        if not count:
            return np.zeros(0)
        place = places(self._keys, self._key(queue, at_s, stretch, "left"))
        known = np.append(self._queues, -1)[place] == queue
        if not known.all():
            place, amount = place[known], amount[known]
        return np.bincount(place, weights=amount, minlength=count).astype(np.float64)

    def running(self, landed: Floats) -> Floats:
        """Return the amounts that had arrived by each instant: sums of ``landed``."""
        total = np.cumsum(landed)
        begin = np.flatnonzero(np.diff(self._queues, prepend=-1))
        before = np.repeat((total - landed)[begin], np.diff(begin, append=len(self._queues)))
        sums: Floats = total - before
        return sums


def places(keys: Ints, values: Ints) -> Ints:
    """Return ``np.searchsorted(keys, values)``, faster for many sorted values."""
    if len(values) <= len(keys) or np.any(values[1:] < values[:-1]):
        return np.searchsorted(keys, values)
    behind = np.searchsorted(values, keys, "right")  # all values from there on are behind the key
    found: Ints = np.cumsum(np.bincount(behind, minlength=len(values)))[: len(values)]
    return found
