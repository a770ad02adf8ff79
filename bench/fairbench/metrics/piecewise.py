"""Sums of piecewise linear functions of time, evaluated at ascending times."""

from __future__ import annotations

import numpy as np

from fairbench.metrics.records import Floats, Ints


class Piecewise:
    """The sum of linear pieces for each client; a piece counts in ``(start, end]``.

    Every piece costs the same however long it lasts, so n pieces cost O(n log times).
    """

    def __init__(self, clients: int, times: Floats) -> None:
        self._clients, self._times = clients, times
        self._shape = (clients, len(times) + 1)
        self._level, self._slope = np.zeros(self._shape), np.zeros(self._shape)

    def add(
        self, client: Ints, start_s: Floats, end_s: Floats, first: Floats, last: Floats
    ) -> None:
        """Add a piece per client given, from the value ``first`` to ``last``."""
        begin = np.searchsorted(self._times, start_s, "right")
        after = np.searchsorted(self._times, end_s, "right")
        kept = np.flatnonzero((after > begin) & ((first != 0) | (last != 0)))
        length = (end_s - start_s)[kept]
        slope = (last - first)[kept] / length
        level = first[kept] - slope * (start_s[kept] - self._times[0])
        row = client[kept] * self._shape[1]
        for place, sign in ((begin, 1.0), (after, -1.0)):
            for total, amount in ((self._level, level), (self._slope, slope)):
                cells = np.bincount(row + place[kept], sign * amount, minlength=total.size)
                total += cells.reshape(self._shape)

    def values(self) -> Floats:
        """Return the sums, shape (clients, times)."""
        level, slope = (np.cumsum(one, axis=1)[:, :-1] for one in (self._level, self._slope))
        found: Floats = level + slope * (self._times - self._times[0])
        return found


def lengths_by(client: Ints, start_s: Floats, end_s: Floats, clients: int, times: Floats) -> Floats:
    """Return the seconds of each client's intervals that lie before each time.

    Args:
        client: Client of each interval, an index, shape (n_intervals,).
        start_s: Starts in seconds, shape (n_intervals,).
        end_s: Ends in seconds, shape (n_intervals,); an end before the start counts as the start.
        clients: Number of clients.
        times: Ascending times in seconds, shape (n_times,).

    Returns:
        Lengths in seconds, shape (n_clients, n_times).
    """
    sums = Piecewise(clients, times)
    over_s = np.maximum(start_s, end_s)
    length = over_s - start_s
    sums.add(client, start_s, over_s, np.zeros(len(length)), length)
    sums.add(client, over_s, np.full(len(length), np.inf), length, length)
    return sums.values()
