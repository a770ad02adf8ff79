"""The execution of several runs: one experiment with several seeds, and sweeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.errors import RunFailed
from fairbench.execute.live_runs import LiveFlags, live_points_left, live_runs, runs_of_points
from fairbench.execute.simulations import FailedPoint, jobs_left, run_jobs, simulation, tell_ended
from fairbench.execute.tasks import Failure, RunContext
from fairbench.results.comparison import SchedulerResults, compare_sweep
from fairbench.results.experiments import point_names
from fairbench.results.new_directories import (
    check_writable,
    fresh_directory,
    removing_new_folders,
    run_folder,
)
from fairbench.results.significance import INTERVALS_FILE, combine_summaries
from fairbench.results.store import StoredRun, Summary, SweepStore, run_name, runs_in, write_json
from fairbench.results.sweeps import write_metrics


@dataclass(frozen=True, slots=True)
class Repeats:
    """Runs of one experiment in the order of their seeds, and the combined summary.

    ``combined`` is None if no run ended before an interruption.
    """

    path: Path
    runs: Sequence[StoredRun]
    combined: dict[str, Any] | None


def repeat(
    spec: ExperimentSpec,
    num_runs: int,
    parent: Path,
    live: LiveFlags,
    context: RunContext,
) -> Repeats:
    """Run an experiment with ``num_runs`` seeds, beginning with ``spec.seed``.

    All runs are saved in one new directory, with confidence intervals (``intervals.json``) and the
    logs of the servers. Servers are started once, and their caches are emptied between two runs.
    After an interruption, runs that had already begun are kept. Raises Interrupted if a signal
    comes before the servers are ready, and raises the error of any run that fails.
    """
    check_writable(parent)
    specs = [spec.model_copy(update={"seed": spec.seed + n}) for n in range(num_runs)]
    with removing_new_folders(parent):
        path = fresh_directory(parent, f"{run_name(spec)}-x{num_runs}")
        if spec.backend is None:
            summaries = simulate_all(specs, path, context)
        else:
            summaries = live_runs(spec.backend, live).run_seeds(path, specs, context)
    if not summaries:
        return Repeats(path, (), None)
    combined = combine_summaries(summaries)
    write_json(path / INTERVALS_FILE, combined)
    runs = sorted(runs_in(path), key=lambda run: int(run.summary["seed"]))
    return Repeats(path, runs, combined)


def simulate_all(
    specs: Sequence[ExperimentSpec], parent: Path, context: RunContext
) -> list[dict[str, Any]]:
    """Simulate and save all experiments, and return their summaries in order.

    After an interruption, some summaries are missing. If a run failed, its error is raised after
    all other runs have ended.
    """
    results = simulate_each(specs, parent, context)
    for result in results.values():
        if isinstance(result, Failure):
            raise result.error
    return [summary for _, summary in sorted(results.items())]


def simulate_each(
    specs: Sequence[ExperimentSpec], parent: Path, context: RunContext
) -> dict[int, Any]:
    """Simulate and save all experiments; return the summary or Failure of each run by index."""
    tasks = [simulation(spec, parent) for spec in specs]
    names = point_names(specs)
    results = {}
    for number, (index, result) in enumerate(context.run(tasks), start=1):
        results[index] = result
        error = str(result.error) if isinstance(result, Failure) else ""
        tell_ended(context, names[index], error, number, len(specs))
    return results


REMARKS = ("workers", "errors", "cache", "lateness", "estimated", "lengths")


def remarks_on(summary: Summary, place: str = "") -> Iterator[str]:
    """Yield a run's notes on problems that make a comparison less certain.

    Each note begins with ``place`` (the run's configuration) and the run's seed.
    """
    notes = summary["notes"]
    for key in REMARKS:
        if key in notes:
            yield f"{place}seed {summary['seed']}: {notes[key]}"


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """The outcome of a sweep: compared configurations, failures, and ``comparison.json``."""

    store: SweepStore
    cells: Sequence[SchedulerResults]
    failures: Sequence[FailedPoint]
    comparison: dict[str, Any]

    def remarks(self) -> Iterator[str]:
        """Yield notes on problems in live runs that make a comparison of schedulers unreliable."""
        for cell in self.cells:
            for one in cell.runs:
                yield from remarks_on(one.summary, f"{cell.place}, {cell.scheduler}, ")

    def require_whole(self) -> None:
        """Raise RunFailed if any experiment of the sweep failed."""
        if self.failures:
            raise RunFailed(f"runs failed: {len(self.failures)}; see {self.store.path / 'failed'}")


def run_sweep(
    store: SweepStore,
    specs: Sequence[ExperimentSpec],
    live: LiveFlags,
    context: RunContext,
    command: str = "sweep",
) -> SweepOutcome:
    """Run the unfinished experiments of a sweep, compare all experiments, and store the comparison.

    If an experiment fails, the sweep continues with the next experiment. Raises UsageError while
    another process runs this sweep, and Interrupted after a signal. The message of ``Interrupted``
    tells users how to continue with ``command``.
    """
    # A lock on the folder keeps another process from executing the runs of this sweep.
    with run_folder(store.path, "alone"):
        store.discard_partial()
        failures = run_jobs(store, jobs_left(store, specs), context)
        for runs, points in runs_of_points(live_points_left(store, specs), live):
            failures += runs.run_points(store, points, context)
        if context.interrupted():
            raise context.interrupted.ended(
                f"interrupted; {len(store.finished())} of {len(specs)} points are "
                f"finished. Continue with: fairbench {command} --resume {store.path}"
            )
        cells = compare_sweep(store.path)
        comparison = comparison_json(store, cells)
        write_json(store.path / "comparison.json", comparison)
        write_metrics(store.path, cells)
    return SweepOutcome(store, cells, failures, comparison)


def comparison_json(store: SweepStore, cells: Sequence[SchedulerResults]) -> dict[str, Any]:
    """Return the content of ``comparison.json``: the stored failures, and the compared cells."""
    failures = store.failures().items()
    return {
        "sweep": store.path.name,
        "path": str(store.path),
        "failures": [{"point": name, "error": error} for name, error in failures],
        "cells": [cell_json(cell) for cell in cells],
    }


def cell_json(cell: SchedulerResults) -> dict[str, Any]:
    """Return a scheduler's results in one configuration as an entry of ``comparison.json``."""
    return {"place": cell.place, "cell": cell.scheduler, **cell.combined}
