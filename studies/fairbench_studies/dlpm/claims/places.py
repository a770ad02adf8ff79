"""The configurations of a figure, with summaries of runs by scheduler and seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import nan
from statistics import fmean
from typing import NamedTuple

from fairbench.metrics.reasons import NOT_CONTENDED
from fairbench.metrics.waiting import DEMAND_LIMITED_ABOVE
from fairbench.results.comparison import SchedulerResults
from fairbench.results.store import Summary
from fairbench_studies.kit.values import chosen

BySeed = Mapping[int, Summary]
"""The summaries of one scheduler's runs in one configuration, keyed by seed."""
At = Mapping[str, BySeed]
"""The runs in one configuration, keyed by scheduler or by another compared setting."""


CALLED = {
    "vtc": "VTC",
    "d2lpm": "D2LPM",
    "preble": "Preble",
    "preble-code": "Preble's code",
    "lpm": "RR+LPM",
}
AT_FOUR = "fig7-at-4"
"""The value of ``figure`` in claims about figure 7 with four replicas."""
PREBLES = ("preble", "preble-code")
"""Two forms of the scheduler Preble: as its paper describes it, and as its published code works.

The authors of DLPM ran Preble's published code.
"""


class Place(NamedTuple):
    """A configuration of figure 7: a workload, a scenario and a number of replicas."""

    workload: str
    scenario: str
    dp: int

    def __str__(self) -> str:
        return f"{self.workload} {self.scenario} at {self.dp}"


def schedulers_of(cells: Iterable[SchedulerResults]) -> set[str]:
    """Return the names of all schedulers that have results."""
    return {cell.combined["scheduler"] for cell in cells}


def is_alone(place: Place) -> bool:
    """Return whether a configuration has only one replica, so that a router has no choice."""
    return place.dp == 1


def by_seed(cell: SchedulerResults) -> BySeed:
    """Return the run summaries of a configuration, keyed by seed."""
    return {one.summary["seed"]: one.summary for one in cell.runs}


def place_of(cell: SchedulerResults) -> Place:
    """Return the workload, scenario and number of replicas of a scheduler's results."""
    return Place(cell.combined["workload"], cell.combined["scenario"], cell.combined["dp"])


def in_one_pool(cells: Sequence[SchedulerResults]) -> list[SchedulerResults]:
    """Return the results of each configuration that was run with only one KV pool size.

    The paper does not vary the size of the KV pool, so configurations with several sizes are left
    out.
    """
    counts = Counter((place_of(cell), cell.combined["scheduler"]) for cell in cells)
    several = {place for (place, _), count in counts.items() if count > 1}
    return [cell for cell in cells if place_of(cell) not in several]


def on_four_replicas(cells: Sequence[SchedulerResults]) -> list[SchedulerResults]:
    """Return figure 7's results on four replicas, in the paper's configurations."""
    return chosen(in_one_pool(cells), dp=4)


def by_place(cells: Sequence[SchedulerResults]) -> Mapping[Place, At]:
    """Return the runs of each scheduler, grouped by the paper's configurations."""
    found: dict[Place, dict[str, BySeed]] = {}
    for cell in in_one_pool(cells):
        found.setdefault(place_of(cell), {})[cell.combined["scheduler"]] = by_seed(cell)
    return found


def mean_over(runs: BySeed, metric: str) -> float:
    """Return a metric's mean over all seeds with a value, or NaN if no seed has a value."""
    known = [summary[metric] for summary in runs.values() if summary[metric] is not None]
    return fmean(known) if known else nan


def contended(runs: Iterable[BySeed]) -> bool:
    """Return whether clients competed for service under all schedulers.

    If the servers are not saturated, throughput equals demand under any scheduler. The fraction of
    time with empty queues varies by chance and is averaged over the seeds.
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
