"""Values of several configurations combined, seed by seed, with an interval.

Amounts of different configurations, such as tokens per second, cannot be added: they are combined
as the geometric mean of the ratios to a baseline. Ratios are combined as their geometric mean;
shares and indices as the plain mean, because they may be 0. The first two are combined as
logarithms, so that differences of combined values are paired like any others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from math import exp, fsum, log
from typing import NamedTuple

from fairbench.metrics.metric import Better, Form, Metric
from fairbench.results.intervals import MeanInterval, t_interval
from fairbench.results.paired import Decision, bound_of_difference, difference
from fairbench.results.values import Value

BOTH_BOUNDS = "a lower bound at some configurations, an upper bound at others"
NO_RATIO = "0 at some configuration, so that there is no ratio"


class Fold(Enum):
    """A way to combine configurations, with words for people."""

    MEAN = "mean"
    GEOMETRIC = "geometric mean"
    RATIO = "geometric mean of the ratios to the baseline"


class Score(NamedTuple):
    """A row's number with its interval, and the paired difference from the baseline.

    ``bound`` has the meaning of ``Value.bound``. If ``value`` is None, ``reason`` gives the reason.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    bound: str = ""
    against: Decision | None = None
    reason: str = ""


def fold_of(metric: Metric, places: int) -> Fold:
    """Return how a metric is combined over ``places`` configurations, if there are several."""
    if places == 1 or metric.form.is_share or metric.form is Form.INDEX:
        return Fold.MEAN
    return Fold.RATIO if metric.unit else Fold.GEOMETRIC


def folded(values: Sequence[Value], fold: Fold) -> Value:
    """Combine one seed's values over all configurations: arithmetic or geometric mean.

    The result is undefined if a value is undefined, or if bounds of both kinds occur.
    """
    for value in values:
        if value.raw is None:
            return Value(None, reason=value.reason)
    bounds = {value.bound for value in values} - {""}
    if len(bounds) > 1:
        return Value(None, reason=BOTH_BOUNDS)
    numbers = [float(value.exact) for value in values]
    if fold is not Fold.MEAN:
        if min(numbers) <= 0:
            return Value(None, reason=NO_RATIO)
        numbers = [log(number) for number in numbers]
    return Value(fsum(numbers) / len(numbers), "".join(bounds))


def score(own: Sequence[Value], base: Sequence[Value], fold: Fold, metric: Metric) -> Score:
    """Score a row's values over the seeds against those of the baseline."""
    undefined = next((one for one in own if one.raw is None), None)
    if undefined is not None:
        return Score(None, reason=undefined.reason)
    found = difference(base, own)
    against = found.decision(metric.better) if metric.better is not Better.NEITHER else None
    if fold is Fold.RATIO:
        if found.mean is None or found.undefined:
            return Score(None, against=against, reason="the baseline has no value")
        bound = bound_of_difference(base, own)
        if bound is None:
            return Score(None, against=against, reason="only bounds are known of both")
        return _score(MeanInterval(found.mean, found.low, found.high), exp, bound, against)
    bounds = {value.bound for value in own} - {""}
    if len(bounds) > 1:
        return Score(None, against=against, reason=BOTH_BOUNDS)
    numbers = [float(value.raw) for value in own]
    if fold is Fold.GEOMETRIC:
        return _score(t_interval(numbers), exp, "".join(bounds), against)
    interval = t_interval(numbers, least=0.0, most=metric.most)
    return _score(interval, float, "".join(bounds), against)


def _score(
    interval: MeanInterval, back: Callable[[float], float], bound: str, against: Decision | None
) -> Score:
    """Convert the interval to the metric's unit; an end beyond a bound is unknown."""
    low = None if interval.low is None or bound == "<" else back(interval.low)
    high = None if interval.high is None or bound == ">" else back(interval.high)
    return Score(back(interval.mean), low, high, bound, against)


Sample = Sequence[Value]
"""A row's values, in the order of the seeds, which all rows share."""


class Ranks(NamedTuple):
    """A row's rank, from 1, and the ranks that it may have within the noise."""

    rank: int
    first: int
    last: int


def rank_ranges(samples: Sequence[Sample], better: Better) -> list[Ranks]:
    """Return the possible ranks of each row, for rows ordered best first.

    ``first`` follows all significantly better rows, ``last`` precedes all significantly worse rows.
    Every pair is compared separately at 95%. There is no correction for the number of pairs: of 20
    pairs that do not differ, about one is reported as different.
    """
    ahead, behind = [0] * len(samples), [0] * len(samples)
    for one in range(len(samples)):
        for other in range(one + 1, len(samples)):
            sign = difference(samples[one], samples[other]).decisive
            if sign:
                first = one if (sign < 0) is (better is Better.MORE) else other
                behind[first] += 1
                ahead[one + other - first] += 1
    count = len(samples)
    return [
        Ranks(row + 1, 1 + better_rows, count - worse_rows)
        for row, (better_rows, worse_rows) in enumerate(zip(ahead, behind, strict=True))
    ]
