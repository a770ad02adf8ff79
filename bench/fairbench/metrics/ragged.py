"""Rows of unequal length, laid end to end."""

from __future__ import annotations

import numpy as np

from fairbench.metrics.records import Ints


def spread(first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """For each row ``count`` numbers from ``first`` on: the row of each, and the number."""
    row = np.repeat(np.arange(len(first)), count)
    number: Ints = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + first[row]
    return row, number
