"""Stored runs side by side: for each configuration, the same load by scheduler.

Pure functions over what ``results.store`` and ``results.sweep_store`` read. A *place* is an
experiment without its scheduler; runs at one place that also share the seed are compared with each
other, and a *cell* is one scheduler at one place over all seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairbench.files.toml_text import read_toml
from fairbench.metrics.metric import NOT_CONTENDED
from fairbench.results.comparison_summary import compared_summary
from fairbench.results.grid import Experiment, key_of, labels, place_of
from fairbench.results.intervals import combine
from fairbench.results.store import EXPERIMENT, StoredRun, Summary
from fairbench.results.sweep_store import AloneRows, SweepStore


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A stored run, its experiment, and its ``compared_summary``."""

    run: StoredRun
    experiment: Experiment
    summary: Summary


@dataclass(frozen=True, slots=True)
class SchedulerResults:
    """A scheduler in one configuration: labels, runs by seed, and the combined runs.

    ``combined`` is the result of ``intervals.combine`` on the runs' summaries.
    """

    place: str
    scheduler: str
    runs: tuple[ComparedRun, ...]
    combined: Summary

    @property
    def demand_limited(self) -> bool:
        """Return whether queues were partly empty in some window, so that rates compare loads."""
        return any(one.summary["demand_limited"] for one in self.runs)


def compare_sweep(path: Path) -> list[SchedulerResults]:
    """Return the cells of a sweep's finished runs, in the order of its points."""
    store = SweepStore(path)
    return compare(store.finished().values(), store.alone())


def compare(runs: Iterable[StoredRun], alone: Mapping[str, AloneRows]) -> list[SchedulerResults]:
    """Return the cells of finished runs by configuration, in order of first appearance.

    ``alone`` is by ``alone_key``; a client missing there has no sharing incentive. Raises DataError
    if a run's experiment cannot be read.
    """
    read = [(run, experiment_of(run)) for run in runs]
    keys = [alone_key(experiment) for _, experiment in read]
    best: dict[str, float] = {}
    contended: set[str] = set()
    for key, (run, _) in zip(keys, read, strict=True):
        best[key] = max(best.get(key, 0.0), run.summary["service_rate_tok_s"] or 0.0)
        if run.summary["notes"].get("min_entitlement_ratio") != NOT_CONTENDED:
            contended.add(key)
    cells: dict[str, dict[str, list[ComparedRun]]] = {}
    named = labels([experiment for _, experiment in read])
    for (place, scheduler), key, (run, experiment) in zip(named, keys, read, strict=True):
        summary = compared_summary(
            run.summary, best[key], alone.get(key, ()), contended=key in contended
        )
        at_place = cells.setdefault(place, {})
        at_place.setdefault(scheduler, []).append(ComparedRun(run, experiment, summary))
    return [
        SchedulerResults(
            place, scheduler, tuple(members), combine([one.summary for one in members])
        )
        for place, by_scheduler in cells.items()
        for scheduler, members in by_scheduler.items()
    ]


def experiment_of(run: StoredRun) -> Experiment:
    """Return the tables of a run's experiment file. Raises DataError if it cannot be read."""
    path = run.path / EXPERIMENT
    return read_toml(path, str(path))


def alone_key(experiment: Experiment) -> str:
    """Return the key of clients simulated alone, which depends on configuration and seed only."""
    return key_of(place_of(experiment))
