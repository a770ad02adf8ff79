"""Marks: which of several values are the best and the worst, as far as they are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from fairbench.metrics.metric import Better

BEST, WORST, NEITHER = "*", "!", " "

Interval = Mapping[str, Any]
"""A metric as ``intervals.combine`` makes it."""


def marks_of(intervals: Sequence[Interval | None], better: Better) -> list[str]:
    """For each value whether it is certainly the best or the worst.

    What agrees in three digits is equal; where all is, nothing is marked. Values that are only
    known to be above all others are the worst together.
    """
    if better is Better.NEITHER:
        return [NEITHER] * len(intervals)
    ranges = [_badness(one, better) for one in intervals if one is not None]
    marks = iter([_mark(ranges, row) for row in range(len(ranges))])
    return [NEITHER if interval is None else next(marks) for interval in intervals]


def _badness(interval: Interval, better: Better) -> tuple[float, float]:
    """Between what a value lies, turned so that more is worse. Only what is bad has bounds."""
    value = float(f"{interval['mean']:.3g}") * (-1 if better is Better.MORE else 1)
    least = -inf if interval.get("upper_bound") else value
    most = inf if interval.get("lower_bound") else value
    return least, most


def _mark(ranges: Sequence[tuple[float, float]], row: int) -> str:
    least, most = ranges[row]
    others = [one for number, one in enumerate(ranges) if number != row]
    best = all(most <= other_least for other_least, _ in others)
    worst = all(other_most <= least or most == other_most == inf for _, other_most in others)
    return NEITHER if best == worst else BEST if best else WORST
