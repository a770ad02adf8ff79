"""The configurations of a figure, each with its summaries by scheduler and seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import nan
from statistics import fmean
from typing import NamedTuple

from fairbench.metrics.fairness_summary import DEMAND_LIMITED_ABOVE
from fairbench.metrics.metric import NOT_CONTENDED
from fairbench.results.comparison import SchedulerResults
from fairbench.results.store import Summary

BySeed = Mapping[int, Summary]
"""The runs of one experiment, by seed."""
At = Mapping[str, BySeed]
"""The runs of a configuration, by scheduler or by another compared setting."""


CALLED = {
    "vtc": "VTC",
    "d2lpm": "D2LPM",
    "preble": "Preble",
    "preble-code": "Preble's code",
    "lpm": "RR+LPM",
}
PREBLES = ("preble", "preble-code")
"""Preble as its paper describes it, and as its authors published it, which the DLPM authors ran."""


class Place(NamedTuple):
    """A row of panels of figure 7, and the number of replicas."""

    workload: str
    scenario: str
    dp: int

    def __str__(self) -> str:
        return f"{self.workload} {self.scenario} at {self.dp}"


def by_seed(cell: SchedulerResults) -> BySeed:
    """Return the summaries of a cell's runs, by seed."""
    return {one.summary["seed"]: one.summary for one in cell.runs}


def by_place(cells: Iterable[SchedulerResults]) -> Mapping[Place, At]:
    """Return the runs in each configuration, by scheduler.

    A configuration with several KV pools does not count: the figure shows it, but it is not judged.
    """
    found: dict[Place, dict[str, BySeed]] = {}
    several: set[Place] = set()
    for cell in cells:
        summary = cell.combined
        place = Place(summary["workload"], summary["scenario"], summary["dp"])
        at = found.setdefault(place, {})
        if summary["scheduler"] in at:
            several.add(place)
        at[summary["scheduler"]] = by_seed(cell)
    return {place: at for place, at in found.items() if place not in several}


def mean_over(runs: BySeed, metric: str) -> float:
    """Return the mean of a metric over the seeds that define it; NaN if none does."""
    known = [summary[metric] for summary in runs.values() if summary[metric] is not None]
    return fmean(known) if known else nan


def contended(runs: Iterable[BySeed]) -> bool:
    """Return whether clients competed in all runs.

    Below saturation a rate equals the demand, and a scheduler has nothing to decide. The time with
    empty queues varies by chance, and is therefore averaged over the seeds.
    """
    return all(_competed(list(of.values())) for of in runs)


def _competed(summaries: Sequence[Summary]) -> bool:
    shares = [summary["queue_empty_share"] for summary in summaries]
    empty = fmean(1.0 if share is None else share for share in shares)
    unhurt = [
        summary
        for summary in summaries
        if summary["notes"].get("min_entitlement_ratio") == NOT_CONTENDED
    ]
    return empty <= DEMAND_LIMITED_ABOVE and not unhurt
