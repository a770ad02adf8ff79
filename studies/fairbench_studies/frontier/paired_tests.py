"""Tests of fair-finish against a rival, paired by seed and corrected for multiple comparisons.

Fair-finish's gain over a rival is the logarithm of the ratio of both schedulers' values of a
measure, positive if fair-finish is better. Runs with the same seed have the same load, so the gain
over a rival is computed for each seed. The variance of the mean gain comes only from differences
between seeds, because the gains of different configurations may really differ.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import exp, inf, isfinite, log, nan, sqrt
from statistics import fmean, variance
from typing import NamedTuple

from fairbench.results.significance import quantile, two_sided_p

Gains = Mapping[Hashable, Sequence[float]]
"""Fair-finish's gains over a rival in one measure: one gain per seed, for each configuration."""


class Estimate(NamedTuple):
    """Fair-finish's mean gain over a rival, with its standard error and degrees of freedom."""

    gain: float
    error: float
    degrees: int

    @property
    def ratio(self) -> float:
        """The factor by which fair-finish is better than the rival in the tested measure."""
        return exp(self.gain)

    def interval(self, level: float) -> tuple[float, float]:
        """Return the confidence interval of ``ratio``, or (0, infinity) with too few seeds."""
        if not self.degrees:
            return 0.0, inf
        reach = quantile(1 - level / 2, self.degrees) * self.error
        return exp(self.gain - reach), exp(self.gain + reach)

    def p_above(self, least: float) -> float:
        """Return the p-value of a one-sided test of whether the mean gain exceeds ``least``."""
        beyond = self.gain - least
        if not self.degrees:
            return 1.0
        if not self.error:
            return 0.0 if beyond > 0 else 1.0
        half = two_sided_p(beyond / self.error, self.degrees) / 2
        return half if beyond > 0 else 1 - half

    def p_below(self, most: float) -> float:
        """Return the one-sided p-value of the hypothesis that the mean gain is ``most`` or more."""
        return Estimate(-self.gain, self.error, self.degrees).p_above(-most)


def estimate(gains: Gains) -> Estimate:
    """Average the gains of fair-finish over a rival: first per configuration, then overall.

    The mean gain includes configurations with one seed, but its standard error does not. Degrees of
    freedom follow Satterthwaite's formula, rounded down. If the mean gain is not finite, the
    estimate of the gain is NaN and not significant.
    """
    mean = fmean(fmean(of_cell) for of_cell in gains.values())
    if not isfinite(mean):
        return Estimate(nan, 0.0, 0)
    spread = [one for one in gains.values() if len(one) > 1]
    if not spread:
        return Estimate(mean, 0.0, 0)
    parts = [(variance(one) / len(one), len(one) - 1) for one in spread]
    total = sum(part for part, _ in parts)
    if not total:
        return Estimate(mean, 0.0, sum(degrees for _, degrees in parts))
    degrees = total**2 / sum(part**2 / degrees for part, degrees in parts)
    return Estimate(mean, sqrt(total) / len(spread), max(1, int(degrees)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted by Holm's method, in the order of ``p_values``."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def non_inferior_gain(margin: float) -> float:
    """Return the log ratio of two values if the first value is lower by the fraction ``margin``."""
    return log(1 - margin)
