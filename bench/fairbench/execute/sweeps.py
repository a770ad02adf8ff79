"""A sweep: unfinished points are run, and all finished points compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairbench.config import ExperimentSpec
from fairbench.errors import RunFailed
from fairbench.execute.context import RunContext
from fairbench.execute.live_options import live_points_left
from fairbench.execute.simulations import FailedPoint, jobs_left, run_jobs
from fairbench.results.comparison import SchedulerResults, compare_sweep
from fairbench.results.new_directories import run_folder
from fairbench.results.store import Summary, write_json
from fairbench.results.sweep_metrics import write_metrics
from fairbench.results.sweep_store import SweepStore

if TYPE_CHECKING:
    from fairbench.live.backends.base import LiveOptions

# keys of the notes of a run
REMARKS = ("workers", "errors", "cache", "lateness", "estimated", "lengths")


def remarks_on(summary: Summary, place: str = "") -> Iterator[str]:
    """Yield the notes on a run that make comparison difficult, with its place and seed."""
    notes = summary["notes"]
    for key in REMARKS:
        if key in notes:
            yield f"{place}seed {summary['seed']}: {notes[key]}"


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """The cells of a sweep, its failures, and both in the form of ``comparison.json``."""

    store: SweepStore
    cells: Sequence[SchedulerResults]
    failures: Sequence[FailedPoint]
    comparison: dict[str, Any]

    def remarks(self) -> Iterator[str]:
        """Yield the notes on runs on real servers that make comparison difficult."""
        for cell in self.cells:
            for one in cell.runs:
                yield from remarks_on(one.summary, f"{cell.place}, {cell.scheduler}, ")

    def require_whole(self) -> None:
        """Raise RunFailed if a point failed."""
        if self.failures:
            raise RunFailed(f"runs failed: {len(self.failures)}; see {self.store.path / 'failed'}")


def run_sweep(
    store: SweepStore,
    specs: Sequence[ExperimentSpec],
    options: LiveOptions | None,
    context: RunContext,
    command: str = "sweep",
) -> SweepOutcome:
    """Run the unfinished points, compare all points, and store the comparison.

    A failed point does not stop the other points. Raises UsageError while another process runs the
    same sweep, and Interrupted after an interruption. ``command`` is the command that continues the
    sweep with ``--resume``.
    """
    with run_folder(store.path, "alone"):  # two processes would do the same work
        store.discard_partial()
        failures = run_jobs(store, jobs_left(store, specs), context)
        if left := live_points_left(store, specs):
            from fairbench.execute.live_run import run_live_points  # needs the live extra

            assert options is not None, "real servers have options"
            failures += run_live_points(store, left, options, context)
        if context.interrupted():
            raise context.interrupted.ended(
                f"interrupted; {len(store.finished())} of {len(specs)} points are "
                f"finished. Continue with: fairbench {command} --resume {store.path}"
            )
        cells = compare_sweep(store.path)
        comparison = {
            "sweep": store.path.name,
            "path": str(store.path),
            "failures": [{"point": name, "error": error} for name, error in failures],
            "cells": [cell_json(cell) for cell in cells],
        }
        write_json(store.path / "comparison.json", comparison)
        write_metrics(store.path, cells)
    return SweepOutcome(store, cells, failures, comparison)


def cell_json(cell: SchedulerResults) -> dict[str, Any]:
    """Return a cell in the format of ``comparison.json``."""
    return {"place": cell.place, "cell": cell.scheduler, **cell.combined}
