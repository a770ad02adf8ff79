"""Several runs of one experiment, seed by seed, as means with 95% bootstrap intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbench.metrics.catalogue import metric_of
from fairbench.results.store import Summary

INTERVALS_FILE = "intervals.json"  # what has one is a directory of such runs
LEVEL = 0.95
RESAMPLES = 10_000


def bootstrap(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The 95% percentile-bootstrap interval of the mean (Efron 1979), from a fixed seed.

    One value gives an interval of no width: it says nothing about the spread. Raises ValueError
    for no value.
    """
    if not values:
        raise ValueError("no values to bootstrap")
    sample = np.asarray(values, dtype=np.float64)
    means = sample[_picks(len(sample), seed)].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@lru_cache(maxsize=8)
def _picks(size: int, seed: int) -> NDArray[np.int64]:
    """Which values each resample takes."""
    return np.random.default_rng(seed).integers(size, size=(RESAMPLES, size))


def combine(summaries: Sequence[Summary]) -> dict[str, Any]:
    """The runs' summaries as one: every metric is ``{mean, low, high, runs}`` or null.

    ``runs`` is how many runs define the metric; ``lower_bound`` is true where some of them give
    only a lower bound, ``upper_bound`` where an upper one (null if there are both). What all runs
    share (scheduler, workload ...), which is no metric, stays a plain value.
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
        if metric_of(key) is None or any(isinstance(value, str | bool) for value in values):
            combined[key] = first
            continue
        combined[key] = _interval(values, [kind for kind in bounds if prefix + key in bounds[kind]])
    return combined


def _interval(values: Sequence[float | None], bounds: Sequence[str]) -> dict[str, Any] | None:
    defined = [float(value) for value in values if value is not None]
    if not defined or len(bounds) > 1:
        return None
    low, high = bootstrap(defined)
    mean = float(np.mean(defined))
    interval: dict[str, Any] = {"mean": mean, "low": low, "high": high, "runs": len(defined)}
    return interval | dict.fromkeys(bounds, True)
