"""Where a long service log is cut, so that metrics go over it a part at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PART_ROWS = 2**20


def is_long(rows: int) -> bool:
    """Whether a log of so many rows is cut at all."""
    return rows > PART_ROWS


def part_bounds(start_s: NDArray[np.float64]) -> list[int]:
    """The first row of each part, and the number of rows.

    ``start_s`` are the rows' starts, ascending. A part has ``PART_ROWS``, or less, so that what
    begins at one instant, the rows of a stretch among it, is in one part; more only if that is.
    """
    bounds, count = [0], len(start_s)
    while count - bounds[-1] > PART_ROWS:
        instant = start_s[bounds[-1] + PART_ROWS]
        cut = int(np.searchsorted(start_s, instant, "left"))
        if cut == bounds[-1]:
            cut = int(np.searchsorted(start_s, instant, "right"))
        bounds.append(cut)
    return bounds if bounds[-1] == count else [*bounds, count]
