"""The directory that holds the runs of a paper's figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbench.config import ExperimentSpec
from fairbench.config.sweep import Sweep, points, read_sweep, with_axes
from fairbench.errors import UsageError
from fairbench.execute.simulations import FailedPoint, SimulationJob, jobs_left, run_jobs
from fairbench.execute.tasks import RunContext
from fairbench.results.store import SweepStore

# ``SECONDS_PER_RUN`` and ``SECONDS_PER_REQUEST`` estimate the CPU time of a simulation, and were
# measured with the bundled workloads.
SECONDS_PER_RUN, SECONDS_PER_REQUEST = 0.5, 3e-4


@dataclass(frozen=True, slots=True)
class Filling:
    """The simulations that a sweep's directory lacks. ``points`` is the number of all runs."""

    store: SweepStore
    points: int
    jobs: Sequence[SimulationJob]

    @property
    def cpu_minutes(self) -> float:
        """The estimated CPU time of the missing runs, in minutes."""
        requests = sum(job.requests for job in self.jobs)
        return (len(self.jobs) * SECONDS_PER_RUN + requests * SECONDS_PER_REQUEST) / 60

    def run(self, context: RunContext) -> list[FailedPoint]:
        """Run the sweep's points that are not stored yet. Return the points whose runs failed."""
        return run_jobs(self.store, self.jobs, context)


def fill_store(
    name: str, folder: Path, context: RunContext, *, quick: bool = False
) -> list[FailedPoint]:
    """Make the missing runs of a bundled sweep, and return the experiments that failed.

    Raises UsageError if the folder contains the runs of a different sweep.
    """
    seeds = {"num_runs": 1} if quick else {}
    sweep = with_axes(read_sweep(name), {}, name=folder.name, **seeds)
    if folder.exists() and SweepStore(folder).sweep() != sweep:
        raise UsageError(
            f"{folder}: holds another sweep; move the folder away, or give another --result-dir"
        )
    return filling(sweep, folder).run(context)


def filling(sweep: Sweep, folder: Path, specs: Sequence[ExperimentSpec] | None = None) -> Filling:
    """Find the runs of a sweep that ``folder`` lacks; create ``folder`` if it does not exist.

    Finished runs of an earlier version of the sweep are kept. ``specs`` are the sweep's
    experiments; if ``specs`` is None, they are computed from the sweep.
    """
    specs = points(sweep) if specs is None else specs
    if not folder.exists():
        store = SweepStore.create(folder.parent, sweep, specs)
    else:
        store = SweepStore(folder)
        store.sweep()  # raises DataError if the folder holds no sweep
        store.extend(sweep, specs)
        store.discard_partial()
    return Filling(store, len(specs), jobs_left(store, specs, with_alone=False))
