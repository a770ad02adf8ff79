"""Contrasts: one experiment against another on the same seeds, metric by metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf
from typing import Any

from fairbench.errors import DataError, UsageError
from fairbench.metrics.catalogue import CLIENTS, metric_of
from fairbench.metrics.metric import Better
from fairbench.results.comparison import ComparedRun
from fairbench.results.grid import differences, key_of, labels, place_of
from fairbench.results.intervals import LEVEL
from fairbench.results.paired import Decision, Difference, difference, log_ratio, mean_value
from fairbench.results.values import Value, more_is_better, value_of, values_of

# fraction of the baseline: a smaller change prints as 0.0% and is neither better nor worse
LEAST_CHANGE = 0.0005


@dataclass(frozen=True, slots=True)
class Side:
    """An experiment over ascending seeds: its name and its runs."""

    name: str
    place: str
    runs: Mapping[int, ComparedRun]

    @property
    def first(self) -> ComparedRun:
        """The run of the first seed."""
        return next(iter(self.runs.values()))

    @property
    def drawn(self) -> bool:
        """Return whether seeds have any effect; a replayed trace is equal under every seed."""
        found = [
            {key: one.raw for key, one in values_of(run.summary).items() if key != "seed"}
            for run in self.runs.values()
        ]
        return any(one != found[0] for one in found)

    @property
    def key(self) -> str:
        """The key that all runs of one experiment share."""
        return experiment_key(self.first.experiment)


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

    baseline: Side
    other: Side
    seeds: tuple[int, ...]
    left_out: tuple[int, ...]
    unlike: tuple[str, ...]
    metrics: tuple[MetricContrast, ...]


def experiment_key(experiment: Mapping[str, Any]) -> str:
    """Return the key shared by experiments that differ at most in seed and tag."""
    kept = {k: v for k, v in experiment.items() if k not in ("seed", "tag")}
    return key_of(kept)


def sides_of(runs: Iterable[ComparedRun]) -> list[Side]:
    """Return the experiments among some runs, in order of first appearance.

    An experiment is named by its scheduler and the parameters that distinguish it from others at
    its configuration. Raises DataError for two runs of one experiment and seed.
    """
    found = list(runs)
    named = labels([run.experiment for run in found])
    groups: dict[str, dict[int, ComparedRun]] = {}
    names = {}
    for run, label in zip(found, named, strict=True):
        key, seed = experiment_key(run.experiment), int(run.summary["seed"])
        names[key] = label
        group = groups.setdefault(key, {})
        if seed in group:
            raise DataError(
                f"{group[seed].run.path} and {run.run.path} have the same experiment and "
                "seed; keep one of them, or compare their directories"
            )
        group[seed] = run
    return [
        Side(names[key].scheduler, names[key].place, dict(sorted(group.items())))
        for key, group in groups.items()
    ]


def by_place(sides: Iterable[Side]) -> list[list[Side]]:
    """Return the sides of each configuration, in order of first appearance."""
    places: dict[str, list[Side]] = {}
    for side in sides:
        places.setdefault(side.place, []).append(side)
    return list(places.values())


def contrast(baseline: Side, other: Side, metrics: Sequence[str]) -> Contrast:
    """Compare one side with another. Raises UsageError if they have no common seed."""
    seeds = sorted(baseline.runs.keys() & other.runs.keys())
    if not seeds:
        raise UsageError(
            f"{baseline.name} has {seed_text(baseline.runs)} and {other.name} has "
            f"{seed_text(other.runs)}: a comparison needs seeds that both have"
        )
    left_out = sorted(baseline.runs.keys() ^ other.runs.keys())
    places = [place_of(side.first.experiment) | {"seed": None} for side in (other, baseline)]
    return Contrast(
        baseline,
        other,
        tuple(seeds),
        tuple(left_out),
        tuple(differences(*places)),
        tuple(_metric(baseline, other, seeds, metric) for metric in metrics),
    )


def _metric(baseline: Side, other: Side, seeds: Sequence[int], metric: str) -> MetricContrast:
    first, second = (
        [value_of(side.runs[seed].summary, metric) for seed in seeds] for side in (baseline, other)
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
        deciding.more_seeds() if decision is Decision.CANNOT_TELL else None,
        ratios,
    )
    is_small = row.ratio is not None and abs(row.ratio - 1) < LEAST_CHANGE
    judged = decision in (Decision.BETTER, Decision.WORSE)
    return replace(row, decision=Decision.SAME) if judged and is_small else row


def known_metrics(sides: Iterable[Side]) -> list[str]:
    """Return the whole-run metrics of some sides that have a better direction."""
    keys = dict.fromkeys(key for side in sides for key in values_of(side.first.summary))
    entries = {key: metric_of(key) for key in keys if not key.startswith(CLIENTS)}
    return [key for key, entry in entries.items() if entry and entry.better is not Better.NEITHER]


def check_metrics(metrics: Iterable[str], sides: Iterable[Side]) -> None:
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
        "baseline": one.baseline.name,
        "other": one.other.name,
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
