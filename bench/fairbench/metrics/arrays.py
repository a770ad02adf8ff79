"""Array arithmetic: long tables in parts, rows of unequal length, and piecewise linear sums."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

PART_ROWS = 2**20  # Logs are processed in parts of at most this many rows.


def ratio(amount: float, of: float) -> float:
    """Return ``amount / of``, or NaN if ``of`` is 0."""
    return amount / of if of else float("nan")


def is_long(rows: int) -> bool:
    """Return whether a log of ``rows`` rows is processed in parts."""
    return rows > PART_ROWS


def part_bounds(start_s: Floats) -> list[int]:
    """Return where to cut a long log: the index of each part's first row, and the number of rows.

    ``start_s`` is the start of each row in seconds, in ascending order. A part has at most
    ``PART_ROWS`` rows, or more if all its rows start at one instant.
    """
    bounds, count = [0], len(start_s)
    while count - bounds[-1] > PART_ROWS:
        instant = start_s[bounds[-1] + PART_ROWS]
        cut = int(np.searchsorted(start_s, instant, "left"))
        if cut == bounds[-1]:
            cut = int(np.searchsorted(start_s, instant, "right"))
        bounds.append(cut)
    return bounds if bounds[-1] == count else [*bounds, count]


def spread(first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Return ``count`` consecutive whole numbers for each row, beginning with ``first``.

    ``first`` and ``count`` have the shape (n_rows,). The first returned array contains the row of
    each number, and the second returned array contains the numbers.
    """
    row = np.repeat(np.arange(len(first)), count)
    number: Ints = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + first[row]
    return row, number


def portions(length: Ints, most: int) -> Iterator[slice]:
    """Yield slices of consecutive rows with a total ``length`` of at most ``most``.

    A row whose ``length`` exceeds ``most`` gets a slice of its own.
    """
    upto = np.cumsum(length)
    bounds = [0]
    while bounds[-1] < len(length):
        first = bounds[-1]
        before = upto[first - 1] if first else 0
        bounds.append(max(first + 1, int(np.searchsorted(upto, before + most, "right"))))
    return (slice(*pair) for pair in pairwise(bounds))


def in_order(client: Ints, clients: int) -> tuple[Ints, Ints]:
    """Return row numbers sorted by client, and the position of each client's first row.

    Rows of one client keep their order. The array of positions ends with the total number of rows.
    """
    # numpy sorts two-byte integers by radix sort, which is ten times as fast as its other sorts.
    order = np.argsort(client.astype(np.uint16) if clients <= 2**16 else client, kind="stable")
    bounds = np.searchsorted(client[order], np.arange(clients + 1))
    return order, bounds


class Piecewise:
    """A sum of linear functions of time for each client, evaluated at given times in seconds.

    A linear function (a "piece") is 0 outside ``(start, end]``.
    """

    def __init__(self, clients: int, times: Floats) -> None:
        self._clients, self._times = clients, times
        self._shape = (clients, len(times) + 1)
        self._level, self._slope = np.zeros(self._shape), np.zeros(self._shape)

    def add_pieces(
        self, client: Ints, start_s: Floats, end_s: Floats, first: Floats, last: Floats
    ) -> None:
        """Add linear functions, each from ``first`` at ``start_s`` to ``last`` at ``end_s``."""
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

    def values_at_times(self) -> Floats:
        """Return each client's sum of linear functions at each time, shape (n_clients, n_times)."""
        level, slope = (np.cumsum(one, axis=1)[:, :-1] for one in (self._level, self._slope))
        found: Floats = level + slope * (self._times - self._times[0])
        return found


def lengths_by(client: Ints, start_s: Floats, end_s: Floats, clients: int, times: Floats) -> Floats:
    """Return, for each client and time, the total length of the client's intervals before the time.

    ``client``, ``start_s`` and ``end_s`` have the shape (n_intervals,); ``times`` is sorted. If an
    interval ends before its start, its length is 0. The result has the shape (n_clients, n_times).
    """
    sums = Piecewise(clients, times)
    over_s = np.maximum(start_s, end_s)
    length = over_s - start_s
    sums.add_pieces(client, start_s, over_s, np.zeros(len(length)), length)
    sums.add_pieces(client, over_s, np.full(len(length), np.inf), length, length)
    return sums.values_at_times()
