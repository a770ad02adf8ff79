"""The runs behind a figure of the paper, in a store of the same name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbench.config import ExperimentSpec
from fairbench.config.sweep import Sweep, overridden, points, read_sweep
from fairbench.errors import UsageError
from fairbench.execute.context import RunContext
from fairbench.execute.simulations import FailedPoint, Job, jobs_left, run_jobs
from fairbench.results.sweep_store import SweepStore

# Approximate processor time of a run and of a request, in the bundled workloads.
SECONDS_PER_RUN, SECONDS_PER_REQUEST = 0.5, 3e-4


@dataclass(frozen=True, slots=True)
class Filling:
    """The missing runs of ``points`` in a store."""

    store: SweepStore
    points: int
    jobs: Sequence[Job]

    @property
    def cpu_minutes(self) -> float:
        """Estimate the minutes for one processor, from the expected requests."""
        requests = sum(job.requests for job in self.jobs)
        return (len(self.jobs) * SECONDS_PER_RUN + requests * SECONDS_PER_REQUEST) / 60

    def run(self, context: RunContext) -> list[FailedPoint]:
        """Run the missing points; return the failures."""
        return run_jobs(self.store, self.jobs, context)


def fill_store(
    name: str, folder: Path, context: RunContext, *, quick: bool = False
) -> list[FailedPoint]:
    """Run the missing points of a bundled sweep; return the failures.

    Raises UsageError if the folder holds another sweep.
    """
    seeds = {"num_runs": 1} if quick else {}
    sweep = overridden(read_sweep(name), {}, name=folder.name, **seeds)
    if folder.exists() and SweepStore(folder).sweep() != sweep:
        raise UsageError(
            f"{folder}: holds another sweep; move the folder away, or give another --result-dir"
        )
    return filling(sweep, folder).run(context)


def filling(sweep: Sweep, folder: Path, specs: Sequence[ExperimentSpec] | None = None) -> Filling:
    """Return the missing runs of a sweep in the folder's store; create a missing store.

    Runs that an earlier form of the sweep completed are reused. ``specs`` are the sweep's points,
    if the caller has computed them already.
    """
    specs = points(sweep) if specs is None else specs
    if not folder.exists():
        store = SweepStore.create(folder.parent, sweep, specs)
    else:
        store = SweepStore(folder)
        store.sweep()  # raises for a path that is not a store
        store.extend(sweep, specs)
        store.discard_partial()
    return Filling(store, len(specs), jobs_left(store, specs, with_alone=False))
