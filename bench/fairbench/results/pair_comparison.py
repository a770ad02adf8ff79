"""Contrasts: one experiment against another on the same seeds, metric by metric."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, inf
from pathlib import Path
from typing import Any

from fairbench.errors import DataError, UsageError
from fairbench.metrics.catalogue import CLIENTS, metric_of
from fairbench.metrics.metric import Better
from fairbench.results.comparison import ComparedRun, SchedulerResults, cells_of, runs_below
from fairbench.results.grid import differences, place_of
from fairbench.results.intervals import LEVEL
from fairbench.results.paired import Decision, Difference, difference, log_ratio, mean_value
from fairbench.results.values import Value, more_is_better, value_of, values_of

# fraction of the baseline: a smaller change prints as 0.0% and is neither better nor worse
LEAST_CHANGE = 0.0005


@dataclass(frozen=True, slots=True)
class MetricContrast:
    """A metric of two sides: their means on the same seeds, and the difference.

    ``more_seeds`` is the number of further seeds that would probably decide; None if no seeds are
    needed, if too many are, or if more would not help. ``ratios`` is the difference of logarithms,
    which decides for times if it is known.
    """

    metric: str
    baseline: Value
    other: Value
    difference: Difference
    decision: Decision
    more_seeds: int | None
    ratios: Difference | None = None

    @property
    def ratio(self) -> float | None:
        """The other's mean over the baseline's; None for bounds or a mean of 0.

        For times it is the geometric mean over the seeds.
        """
        if self.ratios is not None and self.ratios.mean is not None:
            return exp(self.ratios.mean)
        if self.difference.bounded or not self.baseline.raw:
            return None
        return float(self.other.raw / self.baseline.raw)


@dataclass(frozen=True, slots=True)
class Contrast:
    """A side against the baseline.

    ``left_out`` are seeds that only one side has, ``unlike`` the differing keys of the experiments,
    without the scheduler.
    """

    baseline: SchedulerResults
    other: SchedulerResults
    seeds: tuple[int, ...]
    left_out: tuple[int, ...]
    unlike: tuple[str, ...]
    metrics: tuple[MetricContrast, ...]


def sides_of(runs: Iterable[ComparedRun]) -> list[SchedulerResults]:
    """Return the cells of runs that can be paired by seed.

    Raises DataError for two runs of one experiment and seed.
    """
    sides = cells_of(list(runs))
    for side in sides:
        for run in side.runs:
            if (other := side.by_seed[int(run.summary["seed"])]) is not run:
                raise DataError(
                    f"{run.run.path} and {other.run.path} have the same experiment and "
                    "seed; keep one of them, or compare their directories"
                )
    return sides


def sides_below(path: Path) -> list[SchedulerResults]:
    """Return the cells of a directory's runs; errors are those of the two steps."""
    return sides_of(runs_below(path))


def contrast(
    baseline: SchedulerResults, other: SchedulerResults, metrics: Sequence[str]
) -> Contrast:
    """Compare one side with another. Raises UsageError if they have no common seed."""
    seeds = sorted(baseline.by_seed.keys() & other.by_seed.keys())
    if not seeds:
        raise UsageError(
            f"{baseline.scheduler} has {seed_text(baseline.by_seed)} and {other.scheduler} has "
            f"{seed_text(other.by_seed)}: a comparison needs seeds that both have"
        )
    left_out = sorted(baseline.by_seed.keys() ^ other.by_seed.keys())
    places = [place_of(side.first.experiment) | {"seed": None} for side in (other, baseline)]
    return Contrast(
        baseline,
        other,
        tuple(seeds),
        tuple(left_out),
        tuple(differences(*places)),
        tuple(_metric(baseline, other, seeds, metric) for metric in metrics),
    )


def _metric(
    baseline: SchedulerResults, other: SchedulerResults, seeds: Sequence[int], metric: str
) -> MetricContrast:
    first, second = (
        [value_of(side.by_seed[seed].summary, metric) for seed in seeds]
        for side in (baseline, other)
    )
    pairs = [one for one in zip(first, second, strict=True) if None not in (one[0].raw, one[1].raw)]
    entry = metric_of(metric)
    found = difference(first, second, most=entry.most if entry else inf)
    ratios = log_ratio(first, second) if entry and entry.unit == "s" else None
    deciding = ratios or found
    decision = deciding.decision(entry.better if entry else Better.NEITHER)
    row = MetricContrast(
        metric,
        mean_value([one for one, _ in pairs]),
        mean_value([one for _, one in pairs]),
        found,
        decision,
        deciding.more_seeds() if decision is Decision.INCONCLUSIVE else None,
        ratios,
    )
    is_small = row.ratio is not None and abs(row.ratio - 1) < LEAST_CHANGE
    judged = decision in (Decision.BETTER, Decision.WORSE)
    return replace(row, decision=Decision.SAME) if judged and is_small else row


def known_metrics(sides: Iterable[SchedulerResults]) -> list[str]:
    """Return the whole-run metrics of some sides that have a better direction."""
    keys = dict.fromkeys(key for side in sides for key in values_of(side.first.summary))
    entries = {key: metric_of(key) for key in keys if not key.startswith(CLIENTS)}
    return [key for key, entry in entries.items() if entry and entry.better is not Better.NEITHER]


def check_metrics(metrics: Iterable[str], sides: Iterable[SchedulerResults]) -> None:
    """Raise UsageError for a metric that no side has, or that has no better direction.

    A client's metric is ``clients.NAME.KEY``.
    """
    known = {key for side in sides for key in values_of(side.first.summary)}
    for metric in metrics:
        more_is_better(metric, known)


def seed_text(seeds: Iterable[int]) -> str:
    """Return ``seed 3``, ``seeds 0 to 4`` or ``seeds 0, 2, 7``."""
    listed = sorted(seeds)
    if len(listed) == 1:
        return f"seed {listed[0]}"
    together = listed[-1] - listed[0] == len(listed) - 1
    return "seeds " + (f"{listed[0]} to {listed[-1]}" if together else ", ".join(map(str, listed)))


def contrast_json(contrasts: Sequence[Contrast]) -> dict[str, Any]:
    """Return contrasts for programs; undefined and unknown values are None."""
    return {"level": LEVEL, "comparisons": [_as_json(one) for one in contrasts]}


def _as_json(one: Contrast) -> dict[str, Any]:
    return {
        "place": one.baseline.place,
        "baseline": one.baseline.scheduler,
        "other": one.other.scheduler,
        "seeds": list(one.seeds),
        "seeds_left_out": list(one.left_out),
        "unlike": list(one.unlike),
        "metrics": {row.metric: _metric_json(row) for row in one.metrics},
    }


def _factor(row: MetricContrast, end: str) -> float | None:
    value = getattr(row.ratios, end, None)
    return None if value is None else exp(value)


def _metric_json(row: MetricContrast) -> dict[str, Any]:
    found, entry = row.difference, metric_of(row.metric)
    return {
        "better": entry.better.value if entry else "",
        "baseline": row.baseline.raw,
        "other": row.other.raw,
        "ratio_to_baseline": row.ratio,
        "difference": found.mean,
        "low": found.low,
        "high": found.high,
        "ratio_low": _factor(row, "low"),
        "ratio_high": _factor(row, "high"),
        "p": (row.ratios or found).p,
        "runs": found.runs,
        "undefined": found.undefined,
        "bounded": found.bounded,
        "decision": row.decision.value,
        "more_seeds": row.more_seeds,
    }
