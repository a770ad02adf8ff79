"""The runs that a figure of a paper shows, in a directory with the figure's name."""

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

# A simulation takes about ``SECONDS_PER_RUN`` seconds of processor time per run and
# ``SECONDS_PER_REQUEST`` per request, measured with the bundled workloads.
SECONDS_PER_RUN, SECONDS_PER_REQUEST = 0.5, 3e-4


@dataclass(frozen=True, slots=True)
class Filling:
    """The directory of a sweep's runs, with the points (experiments) whose runs are missing."""

    store: SweepStore
    points: int
    jobs: Sequence[SimulationJob]

    @property
    def cpu_minutes(self) -> float:
        """Estimate the minutes that one processor needs, from the expected number of requests."""
        requests = sum(job.requests for job in self.jobs)
        return (len(self.jobs) * SECONDS_PER_RUN + requests * SECONDS_PER_REQUEST) / 60

    def run(self, context: RunContext) -> list[FailedPoint]:
        """Make the missing runs, and return the points whose runs failed."""
        return run_jobs(self.store, self.jobs, context)


def fill_store(
    name: str, folder: Path, context: RunContext, *, quick: bool = False
) -> list[FailedPoint]:
    """Make the missing runs of a bundled sweep, and return the failed points.

    Raises UsageError if the folder contains a different sweep.
    """
    seeds = {"num_runs": 1} if quick else {}
    sweep = with_axes(read_sweep(name), {}, name=folder.name, **seeds)
    if folder.exists() and SweepStore(folder).sweep() != sweep:
        raise UsageError(
            f"{folder}: holds another sweep; move the folder away, or give another --result-dir"
        )
    return filling(sweep, folder).run(context)


def filling(sweep: Sweep, folder: Path, specs: Sequence[ExperimentSpec] | None = None) -> Filling:
    """Return the runs of a sweep that are missing in the folder, which is created if needed.

    Runs of an earlier version of the sweep are used again. ``specs`` are the sweep's experiments,
    if the caller has already computed them.
    """
    specs = points(sweep) if specs is None else specs
    if not folder.exists():
        store = SweepStore.create(folder.parent, sweep, specs)
    else:
        store = SweepStore(folder)
        store.sweep()  # ``sweep`` raises DataError if the path is not the directory of a sweep.
        store.extend(sweep, specs)
        store.discard_partial()
    return Filling(store, len(specs), jobs_left(store, specs, with_alone=False))
