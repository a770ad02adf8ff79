"""Two sides on the same seeds: their difference, and which of them is better.

A seed draws the load, so both runs of a seed have the same load, and their difference shows more
than two separate means. The interval is Student's for the mean of the differences. If a value is
only a bound, so are its difference and one end of the interval. The other end is then unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import fsum, inf, log, sqrt

from fairbench.metrics.metric import Better
from fairbench.results.intervals import LEVEL, deviation, quantile, t_interval, two_sided_p
from fairbench.results.values import Value

# processors add up in different orders; a changed decision makes a larger difference
ROUNDING = 1e-12
POWER = 0.8  # the probability of a decision for which further seeds are counted
MIXED = "some values are only lower bounds, others only upper bounds"
MOST_SEEDS = 1000  # beyond this number, the difference is too small to be worth the seeds


class Decision(StrEnum):
    """The conclusion from the differences about the second side."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Difference:
    """The second side minus the first, on the same seeds.

    ``runs`` is the number of seeds in which both sides have a value, ``undefined`` the number in
    which one has none. ``low`` and ``high`` are the ends of the interval of ``mean``, None if they
    are unknown. ``deviation`` is the standard deviation of single differences, ``p`` the two-sided
    p-value of no difference; both are None for fewer than two differences, and ``p`` also if
    differences are only bounds.
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
        """Return 1 if the second side is significantly larger, -1 if smaller, 0 if equal, or None.

        With a missing value the result is None: values are rarely missing by chance.
        """
        if self.undefined or self.runs < 2:
            return None
        if self.mean == 0 and self.deviation == 0 and not self.bounded:
            return 0
        if self.low is not None and self.low > 0:
            return 1
        return -1 if self.high is not None and self.high < 0 else None

    @property
    def exact(self) -> bool:
        """Return whether all seeds have the same difference up to rounding, which is not 0."""
        if not self.mean or self.deviation is None:
            return False
        return self.deviation <= ROUNDING * abs(self.mean)

    def decision(self, better: Better) -> Decision:
        """Return the conclusion for a metric with the given better direction."""
        sign = self.decisive
        if sign is None:
            return Decision.INCONCLUSIVE
        if sign == 0:
            return Decision.SAME
        return Decision.BETTER if (sign > 0) is (better is Better.MORE) else Decision.WORSE

    @property
    def obstacle(self) -> str:
        """The reason why more seeds would not help; "" if they might."""
        if self.undefined:
            return f"undefined in {self.undefined} of {self.runs + self.undefined} seeds"
        known = self.high if self.mean is not None and self.mean < 0 else self.low
        return "only bounds are known" if self.bounded and known is None and self.runs else ""

    def more_seeds(self, level: float = LEVEL) -> int | None:
        """Estimate how many more seeds are needed at this mean and spread; None if too many.

        Mean and spread are themselves estimated from few seeds, so the number is only a guide.
        """
        if self.deviation is None or self.mean is None or self.obstacle:
            return None
        needed = seeds_needed(self.mean, self.deviation, level)
        return None if needed is None else max(1, needed - self.runs)


def difference(
    first: Sequence[Value], second: Sequence[Value], *, level: float = LEVEL, most: float = inf
) -> Difference:
    """Return the difference of two sides whose values have the order of their seeds.

    Values are between 0 and ``most``, so that no difference exceeds ``most``. Raises DataError for
    a value that is no number, ValueError for sides of different lengths.
    """
    pairs = list(zip(first, second, strict=True))
    defined = [pair for pair in pairs if pair[0].raw is not None and pair[1].raw is not None]
    undefined = len(pairs) - len(defined)
    if not defined:
        return Difference(0, undefined, None)
    deltas = [_delta(*pair) for pair in defined]
    bound = bound_of_difference([one for one, _ in defined], [one for _, one in defined])
    average, low, high = t_interval(deltas, level=level, least=-most, most=most)
    if len(deltas) < 2:
        return Difference(1, undefined, average, bounded=bound != "")
    spread = deviation(deltas)
    return Difference(
        len(deltas),
        undefined,
        average,
        low if bound in ("", ">") else None,
        high if bound in ("", "<") else None,
        spread,
        None if bound != "" else _p(average, spread, len(deltas)),
        bound != "",
    )


def log_ratio(first: Sequence[Value], second: Sequence[Value]) -> Difference | None:
    """Return the difference of logarithms, for values that differ by factors.

    The result is None unless all values are known. A wait that falls to a tenth in every seed
    falls by different amounts in each. The difference in seconds could then be inconclusive.
    """
    both = [*first, *second]
    if any(one.raw is None or one.bound or not _number(one) > 0 for one in both):
        return None
    logs = [[Value(log(_number(one))) for one in side] for side in (first, second)]
    return difference(*logs)


def seeds_needed(effect: float, spread: float, level: float = LEVEL) -> int | None:
    """Return how many seeds detect a mean difference with a power of ``POWER``.

    ``spread`` is the standard deviation of single differences. The formula is the usual one with
    quantiles of t. The result is None for more than ``MOST_SEEDS``.
    """

    def enough(seeds: int) -> bool:
        reach = quantile((1 + level) / 2, seeds - 1) + quantile(POWER, seeds - 1)
        return reach * spread <= abs(effect) * sqrt(seeds)

    if effect == 0 or not enough(MOST_SEEDS):
        return None
    low, high = 1, MOST_SEEDS  # numbers of seeds that are not enough, and enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _delta(first: Value, second: Value) -> float:
    before, after = _number(first), _number(second)
    change = after - before
    return 0.0 if abs(change) <= ROUNDING * max(abs(before), abs(after)) else change


def _number(value: Value) -> float:
    return float(value.raw if value.is_number else value.exact)


def bound_of_difference(first: Sequence[Value], second: Sequence[Value]) -> str | None:
    """Return whether the differences, second minus first, are bounds of the true differences.

    The result is ``>`` if they are lower bounds, ``<`` if they are upper bounds, "" if all are
    exact, and None if some bound from below and others from above.
    """
    above = any(one.bound == ">" for one in second) or any(one.bound == "<" for one in first)
    below = any(one.bound == "<" for one in second) or any(one.bound == ">" for one in first)
    return None if above and below else ">" if above else "<" if below else ""


def _p(average: float, spread: float, runs: int) -> float:
    if spread == 0:
        return 1.0 if average == 0 else 0.0
    return two_sided_p(average / spread * sqrt(runs), runs - 1)


def mean_value(values: Sequence[Value]) -> Value:
    """Return the mean of numeric values; a bound if one of them is.

    The mean is undefined without values, and for lower bounds together with upper bounds.
    """
    bounds = {value.bound for value in values if value.bound}
    if not values or len(bounds) > 1:
        return Value(None, reason=MIXED if values else "")
    return Value(fsum(map(_number, values)) / len(values), bounds.pop() if bounds else "")
