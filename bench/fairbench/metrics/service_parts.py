"""The division of a long service log into parts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PART_ROWS = 2**20


def is_long(rows: int) -> bool:
    """Return whether a log with this number of rows is divided."""
    return rows > PART_ROWS


def part_bounds(start_s: NDArray[np.float64]) -> list[int]:
    """Return the first row of each part, followed by the number of rows.

    ``start_s`` are the rows' starts, ascending. A part has at most ``PART_ROWS`` rows. Rows that
    begin at one instant, such as those of a stretch, stay in one part, which may exceed the limit
    only for that reason.
    """
    bounds, count = [0], len(start_s)
    while count - bounds[-1] > PART_ROWS:
        instant = start_s[bounds[-1] + PART_ROWS]
        cut = int(np.searchsorted(start_s, instant, "left"))
        if cut == bounds[-1]:
            cut = int(np.searchsorted(start_s, instant, "right"))
        bounds.append(cut)
    return bounds if bounds[-1] == count else [*bounds, count]
