"""Rows of unequal length, stored end to end, and what belongs to each client."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from fairbench.metrics.records import Ints


def spread(first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Expand each row to ``count`` numbers from ``first``; return the row and number of each."""
    row = np.repeat(np.arange(len(first)), count)
    number: Ints = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + first[row]
    return row, number


def portions(length: Ints, most: int) -> Iterator[slice]:
    """Yield neighbouring rows with at most ``most`` numbers in total, or a single longer row."""
    upto = np.cumsum(length)
    bounds = [0]
    while bounds[-1] < len(length):
        first = bounds[-1]
        before = upto[first - 1] if first else 0
        bounds.append(max(first + 1, int(np.searchsorted(upto, before + most, "right"))))
    return (slice(*pair) for pair in pairwise(bounds))


def in_order(client: Ints, clients: int) -> tuple[Ints, Ints]:
    """Return the rows sorted by client, in stable order, and the bounds of each client's rows.

    The last bound is the number of rows.
    """
    # numpy sorts two-byte integers by radix, ten times as fast.
    order = np.argsort(client.astype(np.uint16) if clients <= 2**16 else client, kind="stable")
    bounds = np.searchsorted(client[order], np.arange(clients + 1))
    return order, bounds
