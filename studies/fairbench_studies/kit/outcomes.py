"""Outcomes of a claim's parts, and comparisons of two schedulers seed by seed.

A claim holds if the whole 95% interval of the paired difference lies on the claimed side of a
threshold, such as a ratio of 1. The claim is reversed if the whole interval lies on the other side,
and inconclusive otherwise. With a single seed, the difference itself decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import exp, isfinite, log
from typing import NamedTuple

from fairbench.results.intervals import bound_of_difference, difference
from fairbench.results.summary import Value


class Outcome(StrEnum):
    """The outcome of a claim in one configuration or in all.

    Only numbers can be ``OFF`` (too far from the paper's).
    """

    HOLDS = "holds"
    REVERSED = "reversed"
    INCONCLUSIVE = "inconclusive"
    UNCONTENDED = "not contended"
    OFF = "off"
    UNTESTABLE = "not testable"


class Seen(NamedTuple):
    """The result of one measure in one configuration: its mean, confidence interval and outcome.

    The ends ``low`` and ``high`` of the interval are None if unknown. ``bound`` is ``>`` or ``<``
    if ``value`` is only a bound of the mean; ``value`` is None if the mean is unknown, or if the
    result is about several pairs of schedulers.
    """

    outcome: Outcome
    value: float | None = None
    low: float | None = None
    high: float | None = None
    bound: str = ""


def compared(
    less: Sequence[Value], more: Sequence[Value], flip: float = 1.0, *, is_ratio: bool = True
) -> Seen:
    """Compare two lists of values, in the order of the seeds, by ratio or by difference.

    ``flip`` is the ratio or difference of ``more`` to ``less`` (such as 1 or 0) beyond which the
    claim holds. Ratios are averaged by their logarithms.
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
    """Compare plain numbers as ``compared`` does. NaN and infinite numbers count as unknown."""
    first, second = (
        [Value(one if isfinite(one) else None) for one in side] for side in (less, more)
    )
    return compared(first, second, flip, is_ratio=is_ratio)


def joined(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the joint outcome of several conditions, which is the worst of their outcomes."""
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
