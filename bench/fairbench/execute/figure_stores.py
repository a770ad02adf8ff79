"""The runs behind a figure of the paper: a bundled sweep of the same name, kept in its store."""

from __future__ import annotations

from pathlib import Path

from fairbench.config.sweep import overridden, read_sweep
from fairbench.config.sweep_points import points
from fairbench.errors import UsageError
from fairbench.execute.context import RunContext
from fairbench.execute.outcomes import FailedPoint
from fairbench.execute.sweep_jobs import jobs_left, run_jobs
from fairbench.results.sweep_store import SweepStore


def fill_store(
    name: str, folder: Path, context: RunContext, *, quick: bool = False
) -> list[FailedPoint]:
    """Run the points of a bundled sweep that its store lacks, ``quick`` one seed each; who failed.

    Raises UsageError if the folder holds another sweep.
    """
    seeds = {"num_runs": 1} if quick else {}
    sweep = overridden(read_sweep(name), {}, name=folder.name, **seeds)
    specs = points(sweep)
    if not folder.exists():
        store = SweepStore.create(folder.parent, sweep, specs)
    else:
        store = SweepStore(folder)
        if store.sweep() != sweep:
            raise UsageError(f"{folder}: holds another sweep; move it away or use --result-dir")
        store.discard_partial()
    return run_jobs(store, jobs_left(store, specs, with_alone=False), context)
