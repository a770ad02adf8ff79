"""The search for the smallest sufficient number, which tests only some numbers."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import NamedTuple

Search = Generator[list[int], Mapping[int, bool], "Found"]
"""Yields numbers to try, receives which of them are enough, and returns the result.

The search never yields an empty list, since it would then stop.
"""


class Found(NamedTuple):
    """The smallest sufficient number (None if there is none), and the tested numbers.

    ``monotone`` is true if every tested number above a sufficient one is sufficient, too. If true,
    untested numbers are assumed to follow; if false, every number below the smallest sufficient one
    was tested.
    """

    smallest: int | None
    monotone: bool
    tried: dict[int, bool]


def bisected(low: int, high: int) -> Search:
    """Find the smallest sufficient size from ``low`` to ``high`` by bisection.

    The sizes around the result are tested too. If the results are not monotone, every size below
    the smallest sufficient one is tested. If the largest size is insufficient, smaller sizes are
    tested before the search reports that none suffices.
    """
    tried = dict((yield [high]))
    below, above = low - 1, high
    if not tried[high] and (smaller := _halves(low, high)):
        tried |= yield smaller
    if tried[high]:
        while above - below > 1:
            middle = (below + above) // 2
            tried |= yield [middle]
            below, above = (below, middle) if tried[middle] else (middle, above)
    neighbours = [one for one in (below - 1, above - 1, above + 1) if low <= one <= high]
    if new := [one for one in neighbours if one not in tried]:
        tried |= yield new
    if not is_monotone(tried):
        smallest = min(one for one, enough in tried.items() if enough)
        if new := [one for one in range(low, smallest) if one not in tried]:
            tried |= yield new
    return _found(tried)


def _halves(low: int, high: int) -> list[int]:
    """Yield the numbers half-way from ``high`` to ``low``, and so on down to ``low``."""
    found = []
    while high > low:
        high = (low + high) // 2
        found.append(high)
    return found


def each(low: int, high: int) -> Search:
    """Find the smallest sufficient size from ``low`` to ``high`` by testing every size."""
    return _found(dict((yield list(range(low, high + 1)))))


def _found(tried: dict[int, bool]) -> Found:
    enough = [one for one, is_enough in tried.items() if is_enough]
    return Found(min(enough, default=None), is_monotone(tried), dict(sorted(tried.items())))


def is_monotone(tried: Mapping[int, bool]) -> bool:
    """Return whether every size above a sufficient one is sufficient."""
    enough = [tried[one] for one in sorted(tried)]
    return enough == sorted(enough)
