"""Confidence intervals and significance of means and paired differences over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import atan, cos, fsum, inf, log, pi, sin, sqrt, tan
from typing import Any, NamedTuple

from fairbench.config.cluster import ENGINE_CODE
from fairbench.metrics.catalogue import metric_of
from fairbench.metrics.metric import Better
from fairbench.results.store import Summary
from fairbench.results.summary import Value

HALVINGS = 60  # bisection steps that find an angle from 0 to 90 degrees to all digits


def central(t: float, degrees: int) -> float:
    """Return the probability that a Student t variable lies between ``-|t|`` and ``|t|``."""
    if degrees < 1:
        raise ValueError(f"{degrees} degrees of freedom: must be at least 1")
    return _central(atan(abs(t) / sqrt(degrees)), degrees)


def two_sided_p(t: float, degrees: int) -> float:
    """Return the probability that a Student t variable is at least as far from 0 as ``t``.

    For whole degrees of freedom, a t probability is a finite sum (Abramowitz and Stegun 26.7.3-4).
    The sum is computed here because Numpy has no t distribution, and scipy is a large package.
    """
    return max(0.0, 1.0 - central(t, degrees))


@lru_cache(maxsize=4096)
def quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t at a probability of at least 1/2 and less than 1.

    Raises ValueError for a probability outside [1/2, 1), or for less than one degree of freedom.
    """
    if not 0.5 <= probability < 1:
        raise ValueError(f"probability {probability}: must be at least 0.5 and less than 1")
    wanted = 2 * probability - 1
    low, high = 0.0, pi / 2
    central(0.0, degrees)  # ``central`` raises ValueError if ``degrees`` is below 1.
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _central(middle, degrees) < wanted:
            low = middle
        else:
            high = middle
    return tan((low + high) / 2) * sqrt(degrees)


def _central(angle: float, degrees: int) -> float:
    """Return ``central(t, degrees)`` for t = sqrt(degrees) tan(angle), computed as a finite sum."""
    squared = cos(angle) ** 2
    odd = degrees % 2
    term = cos(angle) if odd else 1.0
    total = term if degrees > 1 else 0.0
    for number in range(2 + odd, degrees, 2):
        term *= squared * (number - 1) / number
        total += term
    return (angle + sin(angle) * total) * 2 / pi if odd else sin(angle) * total


INTERVALS_FILE = "intervals.json"  # file with 95% intervals, in the directory of repeated runs
LEVEL = 0.95
METHOD = "mean and 95% interval (Student's t)"


class MeanInterval(NamedTuple):
    """A mean with its confidence interval; the mean of a single value has no interval."""

    mean: float
    low: float | None
    high: float | None


def t_interval(
    values: Sequence[float], *, level: float = LEVEL, most: float = inf, least: float = -inf
) -> MeanInterval:
    """Return the confidence interval of the mean, clipped to the range [``least``, ``most``].

    The interval covers the mean with probability ``level`` if the distribution is normal. Raises
    ValueError if there are no values.
    """
    if not values:
        raise ValueError("a confidence interval needs at least one value")
    if len(values) == 1:
        return MeanInterval(float(values[0]), None, None)
    average = fsum(values) / len(values)
    half = quantile((1 + level) / 2, len(values) - 1) * deviation(values) / sqrt(len(values))
    low, high = max(average - half, least), min(average + half, most)
    return MeanInterval(average, min(low, average), max(high, average))


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation, estimated from two or more values."""
    average = fsum(values) / len(values)
    return sqrt(fsum((value - average) ** 2 for value in values) / (len(values) - 1))


def combine_summaries(summaries: Sequence[Summary]) -> dict[str, Any]:
    """Combine the summaries of runs: each metric becomes ``{mean, low, high, runs}`` or null.

    ``runs`` is the number of runs in which the metric has a value; for a single run, ``low`` and
    ``high`` are null. ``lower_bound`` or ``upper_bound`` is True if some values are only bounds;
    with lower bounds, the true mean may exceed ``high``. If lower bounds and upper bounds are
    mixed, the metric is null. Values that are not metrics, such as names, are copied from the first
    summary.
    """
    bounds = {
        "lower_bound": {key for summary in summaries for key in summary["censored"]},
        "upper_bound": {key for summary in summaries for key in summary.get("upper_bounds", ())},
    }
    combined = _combine_flat(summaries, bounds, "")
    combined["seeds"] = [summary["seed"] for summary in summaries]
    combined["num_runs"] = len(summaries)
    combined["complete"] = all(summary["complete"] for summary in summaries)
    combined["clients"] = [
        _combine_flat(rows, bounds, f"clients.{rows[0]['client']}.")
        for rows in zip(*(summary["clients"] for summary in summaries), strict=True)
    ]
    if ENGINE_CODE in summaries[0]:
        combined[ENGINE_CODE] = summaries[0][ENGINE_CODE]
    for key in ("seed", "notes", "censored", "upper_bounds"):
        combined.pop(key, None)
    return combined


def _combine_flat(
    rows: Sequence[Summary], bounds: Mapping[str, set[str]], prefix: str
) -> dict[str, Any]:
    combined: dict[str, Any] = {}
    for key, first in rows[0].items():
        values = [row[key] for row in rows]
        if isinstance(first, list | dict):
            continue
        metric = metric_of(key)
        if metric is None or any(isinstance(value, str | bool) for value in values):
            combined[key] = first
            continue
        kinds = [kind for kind in bounds if prefix + key in bounds[kind]]
        defined = [float(value) for value in values if value is not None]
        combined[key] = None
        if defined and len(kinds) <= 1:
            interval = t_interval(defined, least=0.0, most=metric.most)._asdict()
            combined[key] = interval | {"runs": len(defined)} | dict.fromkeys(kinds, True)
    return combined


# A relative difference below ``ROUNDING`` counts as 0, because processors may round sums
# differently.
ROUNDING = 1e-12
POWER = 0.8  # probability that a difference is significant with the estimated number of seeds
MIXED = "some values are only lower bounds, others only upper bounds"
MOST_SEEDS = 1000  # Differences that become significant only with more seeds do not matter.


class Decision(StrEnum):
    """The verdict on the second of two schedulers: better, worse, the same or inconclusive."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Difference:
    """The second scheduler's values minus the first scheduler's values, paired by seed.

    ``runs`` is the number of seeds in which both schedulers have a value, and ``undefined`` is the
    number of other seeds. ``low`` and ``high`` are the ends of the confidence interval of ``mean``,
    or None if unknown. ``deviation`` is the standard deviation of the difference over seeds. ``p``
    is the two-sided p-value for the hypothesis that the schedulers' means are equal. ``deviation``
    and ``p`` are None for a single seed of a random load, and ``p`` is also None if values are only
    lower bounds.
    """

    runs: int
    undefined: int
    mean: float | None
    low: float | None = None
    high: float | None = None
    deviation: float | None = None
    p: float | None = None
    bounded: bool = False

    @property
    def decisive(self) -> int | None:
        """Return the sign of a significant difference, 0 for equal values, or None if inconclusive.

        The result is None if the value of any seed is missing, because values are rarely missing by
        chance.
        """
        if self.undefined or self.deviation is None:
            return None
        if self.mean == 0 and self.deviation == 0 and not self.bounded:
            return 0
        if self.low is not None and self.low > 0:
            return 1
        return -1 if self.high is not None and self.high < 0 else None

    @property
    def exact(self) -> bool:
        """Return whether two schedulers differ by an equal, nonzero value in all seeds."""
        if not self.mean or self.deviation is None:
            return False
        return self.deviation <= ROUNDING * abs(self.mean)

    def decision(self, better: Better) -> Decision:
        """Return the decision on the second scheduler; ``better`` says which values are better."""
        sign = self.decisive
        if sign is None:
            return Decision.INCONCLUSIVE
        if sign == 0:
            return Decision.SAME
        return Decision.BETTER if (sign > 0) is (better is Better.MORE) else Decision.WORSE

    @property
    def obstacle(self) -> str:
        """The reason why more seeds cannot make the difference significant, or "" if they can."""
        if self.undefined:
            return f"undefined in {self.undefined} of {self.runs + self.undefined} seeds"
        known = self.high if self.mean is not None and self.mean < 0 else self.low
        return "only bounds are known" if self.bounded and known is None and self.runs else ""

    def more_seeds(self, level: float = LEVEL) -> int | None:
        """Estimate how many more seeds make a difference significant; None if over ``MOST_SEEDS``.

        The estimate is rough, because few seeds determine the mean and the spread.
        """
        if self.deviation is None or self.mean is None or self.obstacle:
            return None
        needed = seeds_needed(self.mean, self.deviation, level)
        return None if needed is None else max(1, needed - self.runs)


def difference(
    first: Sequence[Value],
    second: Sequence[Value],
    *,
    level: float = LEVEL,
    most: float = inf,
    replay: bool = False,
) -> Difference:
    """Return the paired difference of two schedulers' values, which are in the same seed order.

    The metric's values must be between 0 and ``most``. ``replay`` means that every seed gives the
    same values, so that a single seed has an exact difference. Raises DataError for a value that is
    not a number, and ValueError for unequal numbers of values.
    """
    pairs = list(zip(first, second, strict=True))
    defined = [pair for pair in pairs if pair[0].raw is not None and pair[1].raw is not None]
    undefined = len(pairs) - len(defined)
    if not defined:
        return Difference(0, undefined, None)
    deltas = [_delta(*pair) for pair in defined] * (2 if replay and len(defined) == 1 else 1)
    bound = bound_of_difference([one for one, _ in defined], [one for _, one in defined])
    average, low, high = t_interval(deltas, level=level, least=-most, most=most)
    if len(deltas) < 2:
        return Difference(1, undefined, average, bounded=bound != "")
    spread = deviation(deltas)
    return Difference(
        len(defined),
        undefined,
        average,
        low if bound in ("", ">") else None,
        high if bound in ("", "<") else None,
        spread,
        None if bound != "" else _p(average, spread, len(deltas)),
        bound != "",
    )


def log_ratio(
    first: Sequence[Value], second: Sequence[Value], *, replay: bool = False
) -> Difference | None:
    """Return the paired difference of the logarithms of two schedulers' values.

    If every wait falls to a tenth, the logarithms of short and long waits fall by the same amount.
    The result is None if a value is unknown, a bound or not positive.
    """
    both = [*first, *second]
    if any(one.raw is None or one.bound or not _finite_number(one) > 0 for one in both):
        return None
    logs = [[Value(log(_finite_number(one))) for one in side] for side in (first, second)]
    return difference(*logs, replay=replay)


def seeds_needed(effect: float, spread: float, level: float = LEVEL) -> int | None:
    """Return how many seeds are needed to detect a mean difference with the power ``POWER``.

    ``spread`` is the standard deviation, over seeds, of the difference between two schedulers'
    values. Return None if more than ``MOST_SEEDS`` seeds are needed to detect the difference.
    """

    def enough(seeds: int) -> bool:
        reach = quantile((1 + level) / 2, seeds - 1) + quantile(POWER, seeds - 1)
        return reach * spread <= abs(effect) * sqrt(seeds)

    if effect == 0 or not enough(MOST_SEEDS):
        return None
    # Invariant of the search: ``low`` seeds are too few, and ``high`` seeds are enough.
    low, high = 1, MOST_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _delta(first: Value, second: Value) -> float:
    before, after = _finite_number(first), _finite_number(second)
    change = after - before
    return 0.0 if abs(change) <= ROUNDING * max(abs(before), abs(after)) else change


def _finite_number(value: Value) -> float:
    return float(value.raw if value.is_number else value.exact)


def bound_of_difference(first: Sequence[Value], second: Sequence[Value]) -> str | None:
    """Return whether the difference ``second - first`` is exact, a lower bound or an upper bound.

    The result is ``>`` for lower bounds, ``<`` for upper bounds, "" for exact differences, and None
    if lower and upper bounds both occur.
    """
    above = any(one.bound == ">" for one in second) or any(one.bound == "<" for one in first)
    below = any(one.bound == "<" for one in second) or any(one.bound == ">" for one in first)
    return None if above and below else ">" if above else "<" if below else ""


def _p(average: float, spread: float, runs: int) -> float:
    if spread == 0:
        return 1.0 if average == 0 else 0.0
    return two_sided_p(average / spread * sqrt(runs), runs - 1)


def mean_value(values: Sequence[Value]) -> Value:
    """Return the mean of values; if a value is a lower or upper bound, so is the mean.

    The mean is undefined without values, or if lower and upper bounds both occur.
    """
    bounds = {value.bound for value in values if value.bound}
    if not values or len(bounds) > 1:
        return Value(None, reason=MIXED if values else "")
    return Value(fsum(map(_finite_number, values)) / len(values), bounds.pop() if bounds else "")
