"""Verdicts on a claim, and the comparison of two schedulers over paired seeds.

A claim that one scheduler exceeds another holds if the 95% interval of the paired difference lies
above a threshold. If the interval lies below the threshold, the claim is reversed. If the threshold
lies in the interval, the claim is inconclusive. A single seed gives no interval; a claim then holds
if the difference exceeds the threshold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import exp, isfinite, log
from typing import NamedTuple

from fairbench.results.significance import bound_of_difference, difference
from fairbench.results.summary import Value


class Outcome(StrEnum):
    """The verdict on a claim, in one configuration or overall.

    ``OFF`` means that a simulated number is too far from the paper's number.
    """

    HOLDS = "holds"
    REVERSED = "reversed"
    INCONCLUSIVE = "inconclusive"
    UNCONTENDED = "not contended"
    OFF = "off"
    UNTESTABLE = "not testable"


class Seen(NamedTuple):
    """The result of one measure in one configuration: verdict, mean and confidence interval.

    The ends ``low`` and ``high`` of the interval are None if unknown. ``bound`` is ``>`` or ``<``
    if ``value`` is only a lower or upper bound of the mean. ``value`` is None if the mean is
    unknown, or if the result covers several pairs of schedulers.
    """

    outcome: Outcome
    value: float | None = None
    low: float | None = None
    high: float | None = None
    bound: str = ""


def compared(
    less: Sequence[Value], more: Sequence[Value], flip: float = 1.0, *, is_ratio: bool = True
) -> Seen:
    """Judge, paired by seed, whether values in ``more`` are larger than values in ``less``.

    The claim holds if the ratio ``more / less`` (or the difference, if ``is_ratio`` is false) is
    above the threshold ``flip``. Ratios are averaged over the seeds by the geometric mean.
    """
    if is_ratio:
        less, more, flip = [*map(_logarithm, less)], [*map(_logarithm, more)], log(flip)
    found = difference(less, more)
    low, high = found.low, found.high
    bound = bound_of_difference(less, more)
    if found.runs == 1 and not found.undefined:
        low = found.mean if bound in ("", ">") else None
        high = found.mean if bound in ("", "<") else None
    elif found.runs < 2 or found.undefined:
        low = high = None
    value = None if bound is None else found.mean
    outcome = _outcome(low, high, flip)
    if is_ratio:
        value, low, high = (None if one is None else exp(one) for one in (value, low, high))
    return Seen(outcome, value, low, high, bound or "")


def exceeds(
    less: Iterable[float], more: Iterable[float], flip: float = 1.0, *, is_ratio: bool = True
) -> Seen:
    """Judge whether ``more`` exceeds ``less``; NaN and infinity stand for unknown values."""
    first, second = (
        [Value(one if isfinite(one) else None) for one in side] for side in (less, more)
    )
    return compared(first, second, flip, is_ratio=is_ratio)


def joined(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the joint verdict on several conditions: the worst of their verdicts."""
    worst_first = (Outcome.UNCONTENDED, Outcome.REVERSED, Outcome.INCONCLUSIVE, Outcome.HOLDS)
    return min(outcomes, key=worst_first.index)


def _logarithm(value: Value) -> Value:
    if value.raw is None:
        return value
    return Value(log(value.raw), value.bound) if value.raw > 0 else Value(None)


def _outcome(low: float | None, high: float | None, flip: float) -> Outcome:
    if low is not None and low > flip:
        return Outcome.HOLDS
    return Outcome.REVERSED if high is not None and high < flip else Outcome.INCONCLUSIVE
