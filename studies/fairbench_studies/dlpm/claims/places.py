"""The configurations of a figure, with summaries of runs by scheduler and seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import nan
from statistics import fmean
from typing import Any, NamedTuple

from fairbench.metrics.reasons import NOT_CONTENDED
from fairbench.metrics.waiting import DEMAND_LIMITED_ABOVE
from fairbench.results.comparison import SchedulerResults
from fairbench.results.store import Summary
from fairbench_studies.kit.tally import Tally

BySeed = Mapping[int, Summary]
"""The summaries of one experiment's runs, by seed."""
At = Mapping[str, BySeed]
"""The runs in one configuration, by scheduler or by another setting that is compared."""


CALLED = {
    "vtc": "VTC",
    "d2lpm": "D2LPM",
    "preble": "Preble",
    "preble-code": "Preble's code",
    "lpm": "RR+LPM",
}
AT_FOUR = "fig7-at-4"
"""The name of figure 7's configurations with four replicas, which have stored per-seed values."""
PREBLES = ("preble", "preble-code")
"""Two forms of the scheduler Preble: the form in Preble's paper, and the published code.

The DLPM authors ran Preble's published code.
"""


class Place(NamedTuple):
    """A configuration of figure 7: workload and scenario (a row of panels), number of replicas."""

    workload: str
    scenario: str
    dp: int

    def __str__(self) -> str:
        return f"{self.workload} {self.scenario} at {self.dp}"


class KnownPairs(Mapping[Any, At]):
    """The stored outcomes of pairs of schedulers whose runs are no longer stored.

    A key of ``tallies`` is a metric, the two schedulers, and the ratio or difference beyond which
    the claim holds.
    """

    def __init__(self, tallies: Mapping[tuple[str, str, str, float], Tally]) -> None:
        self.tallies = tallies

    @property
    def schedulers(self) -> set[str]:
        """The schedulers that are compared."""
        return {name for _, above, below, _ in self.tallies for name in (above, below)}

    def __getitem__(self, place: Any) -> At:
        raise KeyError(place)

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0


Source = Sequence[SchedulerResults] | KnownPairs
"""The results of figure 7's runs, or the stored outcomes of pairs of schedulers."""


def schedulers_of(source: Source) -> set[str]:
    """Return the schedulers for which there are runs."""
    if isinstance(source, KnownPairs):
        return source.schedulers
    return {cell.combined["scheduler"] for cell in source}


def is_alone(place: Place) -> bool:
    """Return whether a configuration has one replica, so that the router has no choice."""
    return place.dp == 1


def by_seed(cell: SchedulerResults) -> BySeed:
    """Return the run summaries of a configuration, by seed."""
    return {one.summary["seed"]: one.summary for one in cell.runs}


def by_place(cells: Source) -> Mapping[Place, At]:
    """Return the runs of each scheduler, grouped by configuration.

    A configuration with several sizes of KV memory is left out, because the paper has none like it.
    """
    if isinstance(cells, KnownPairs):
        return cells
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
    """Return a metric's mean over the seeds in which it is defined, or NaN if there are none."""
    known = [summary[metric] for summary in runs.values() if summary[metric] is not None]
    return fmean(known) if known else nan


def contended(runs: Iterable[BySeed]) -> bool:
    """Return whether clients competed for service in all runs.

    Below saturation, throughput equals the demand, and schedulers have no effect. The time with
    empty queues varies by chance; therefore the mean over the seeds decides.
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
