"""Several runs of one experiment, seed by seed, as means with 95% intervals (Student's t).

Every number of a summary, percentiles included, is one value per run; over seeds, which draw the
load, the values are independent, and the interval is for their mean. The interval is exact for
normal values, even for few; for skewed values its coverage is lower (docs/guide/compare.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import atan, cos, fsum, inf, pi, sin, sqrt, tan
from typing import Any, NamedTuple

from fairbench.metrics.catalogue import metric_of
from fairbench.results.store import Summary

HALVINGS = 60  # halvings of a quarter turn, beyond the digits of a float


def central(t: float, degrees: int) -> float:
    """Return the probability of a value between ``-|t|`` and ``|t|``; ValueError for 0 degrees."""
    if degrees < 1:
        raise ValueError(f"{degrees} degrees of freedom: must be at least 1")
    return _central(atan(abs(t) / sqrt(degrees)), degrees)


def two_sided_p(t: float, degrees: int) -> float:
    """Return the probability of a value of Student's t at least as far from 0 as ``t``.

    The series is finite for whole degrees of freedom (Abramowitz and Stegun 26.7.3-4). numpy has no
    t distribution, and scipy would be the largest dependency.
    """
    return max(0.0, 1.0 - central(t, degrees))


@lru_cache(maxsize=4096)
def quantile(probability: float, degrees: int) -> float:
    """Return the quantile of a probability, which is at least 1/2 and less than 1.

    Raises ValueError for another probability, and for less than one degree of freedom.
    """
    if not 0.5 <= probability < 1:
        raise ValueError(f"probability {probability}: must be at least 0.5 and less than 1")
    wanted = 2 * probability - 1
    low, high = 0.0, pi / 2
    central(0.0, degrees)  # raises for an invalid number of degrees
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _central(middle, degrees) < wanted:
            low = middle
        else:
            high = middle
    return tan((low + high) / 2) * sqrt(degrees)


def _central(angle: float, degrees: int) -> float:
    """Return ``central`` for t = sqrt(degrees) tan(angle): a sum of powers of the cosine."""
    squared = cos(angle) ** 2
    odd = degrees % 2
    term = cos(angle) if odd else 1.0
    total = term if degrees > 1 else 0.0
    for number in range(2 + odd, degrees, 2):
        term *= squared * (number - 1) / number
        total += term
    return (angle + sin(angle) * total) * 2 / pi if odd else sin(angle) * total


INTERVALS_FILE = "intervals.json"  # a directory with this file holds repeated runs
LEVEL = 0.95
# description of a number with an interval, for people
METHOD = "mean and 95% interval (Student's t)"


class MeanInterval(NamedTuple):
    """A mean with its confidence interval; a single value has no interval."""

    mean: float
    low: float | None
    high: float | None


def t_interval(
    values: Sequence[float], *, level: float = LEVEL, most: float = inf, least: float = -inf
) -> MeanInterval:
    """Return the confidence interval of the mean, limited to the possible values.

    The interval covers the mean with probability ``level`` if the distribution is normal. Raises
    ValueError without values.
    """
    if not values:
        raise ValueError("an interval needs at least one value")
    if len(values) == 1:
        return MeanInterval(float(values[0]), None, None)
    average = fsum(values) / len(values)
    half = quantile((1 + level) / 2, len(values) - 1) * deviation(values) / sqrt(len(values))
    low, high = max(average - half, least), min(average + half, most)
    return MeanInterval(average, min(low, average), max(high, average))


def deviation(values: Sequence[float]) -> float:
    """Return the estimated standard deviation from two or more values."""
    average = fsum(values) / len(values)
    return sqrt(fsum((value - average) ** 2 for value in values) / (len(values) - 1))


def combine(summaries: Sequence[Summary]) -> dict[str, Any]:
    """Combine the runs' summaries: every metric becomes ``{mean, low, high, runs}`` or null.

    ``runs`` is the number of runs that define the metric; with a single one ``low`` and ``high``
    are null. ``lower_bound`` is true if some values are lower bounds, so that only ``low`` bounds
    the mean. ``upper_bound`` is its counterpart for upper bounds (null if both occur). Facts that
    all runs share (scheduler, workload ...) and that are not metrics stay plain values.
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
        combined[key] = _interval(values, kinds, metric.most)
    return combined


def _interval(
    values: Sequence[float | None], bounds: Sequence[str], most: float
) -> dict[str, Any] | None:
    defined = [float(value) for value in values if value is not None]
    if not defined or len(bounds) > 1:
        return None
    interval: dict[str, Any] = t_interval(defined, least=0.0, most=most)._asdict()
    return interval | {"runs": len(defined)} | dict.fromkeys(bounds, True)
