"""The search of ``plan`` for the smallest cluster, or for the most users."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import NamedTuple

Search = Generator[list[int], Mapping[int, bool], "SmallestSize"]
"""A generator that yields lists of sizes to try, and is sent whether each size is enough.

A size is a number of replicas. The generator returns the result, and never yields an empty list.
"""


class SmallestSize(NamedTuple):
    """The smallest sufficient size, or None if no size is sufficient.

    ``monotone`` is true if every tested size above a sufficient size is sufficient. If true,
    untested sizes are assumed to be as monotone; if false, every size below the smallest sufficient
    size was tested. ``tried`` tells for each tested size whether the size is enough.
    """

    smallest: int | None
    monotone: bool
    tried: dict[int, bool]


def bisected(low: int, high: int) -> Search:
    """Find the smallest sufficient size from ``low`` to ``high`` by bisection.

    The sizes next to the result are tested, too. If the results are not monotone, every size below
    the smallest sufficient size is tested. If the largest size is insufficient, smaller sizes are
    tested before the search reports that no size is sufficient.
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
    return _smallest_size(tried)


def largest(first: int, last: int, is_possible: Callable[[int], bool]) -> Search:
    """Find the largest sufficient size: double from ``first`` up to ``last``, then bisect.

    Sizes for which ``is_possible`` is false are not tested, and lie below all possible sizes. The
    two sizes above the result are tested, too. The result's ``smallest`` is the largest sufficient
    size.
    """
    tried = dict((yield [first]))
    size = first
    while tried[size] and size < last:
        size = min(2 * size, last)
        tried |= yield [size]
    below = max((one for one, enough in tried.items() if enough), default=0)
    above = min((one for one, enough in tried.items() if not enough), default=last + 1)
    while above - below > 1:
        middle = (below + above) // 2
        if is_possible(middle):
            tried |= yield [middle]
        below, above = (below, middle) if tried.get(middle) is False else (middle, above)
    if above + 1 <= last and above + 1 not in tried:
        tried |= yield [above + 1]
    enough = [tried[one] for one in sorted(tried, reverse=True)]
    found = max((one for one in tried if tried[one]), default=None)
    return SmallestSize(found, enough == sorted(enough), dict(sorted(tried.items())))


def _halves(low: int, high: int) -> list[int]:
    """Return the size half-way from ``high`` to ``low``, and half-way again, down to ``low``."""
    found = []
    while high > low:
        high = (low + high) // 2
        found.append(high)
    return found


def every_size(low: int, high: int) -> Search:
    """Find the smallest sufficient size from ``low`` to ``high`` by testing every size."""
    return _smallest_size(dict((yield list(range(low, high + 1)))))


def _smallest_size(tried: dict[int, bool]) -> SmallestSize:
    enough = [one for one, is_enough in tried.items() if is_enough]
    return SmallestSize(min(enough, default=None), is_monotone(tried), dict(sorted(tried.items())))


def is_monotone(tried: Mapping[int, bool]) -> bool:
    """Return whether every tested size above a sufficient size is sufficient."""
    enough = [tried[one] for one in sorted(tried)]
    return enough == sorted(enough)
