"""The runs behind a figure of the paper: a sweep kept in a store of its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbench.config import ExperimentSpec
from fairbench.config.sweep import Sweep, overridden, read_sweep
from fairbench.config.sweep_points import points
from fairbench.errors import UsageError
from fairbench.execute.context import RunContext
from fairbench.execute.outcomes import FailedPoint
from fairbench.execute.sweep_jobs import Job, jobs_left, run_jobs
from fairbench.results.sweep_store import SweepStore

# Of a processor, about, in the bundled workloads: what a run and a request of it cost.
SECONDS_PER_RUN, SECONDS_PER_REQUEST = 0.5, 3e-4


@dataclass(frozen=True, slots=True)
class Filling:
    """What a store still lacks of ``points`` runs."""

    store: SweepStore
    points: int
    jobs: Sequence[Job]

    @property
    def cpu_minutes(self) -> float:
        """About how long it takes one processor, by the requests that are expected."""
        requests = sum(job.requests for job in self.jobs)
        return (len(self.jobs) * SECONDS_PER_RUN + requests * SECONDS_PER_REQUEST) / 60

    def run(self, context: RunContext) -> list[FailedPoint]:
        """Run it; who failed."""
        return run_jobs(self.store, self.jobs, context)


def fill_store(
    name: str, folder: Path, context: RunContext, *, quick: bool = False
) -> list[FailedPoint]:
    """Run the points of a bundled sweep that its store lacks, ``quick`` one seed each; who failed.

    Raises UsageError if the folder holds another sweep.
    """
    seeds = {"num_runs": 1} if quick else {}
    sweep = overridden(read_sweep(name), {}, name=folder.name, **seeds)
    if folder.exists() and SweepStore(folder).sweep() != sweep:
        raise UsageError(f"{folder}: holds another sweep; move it away or use --result-dir")
    return filling(sweep, folder).run(context)


def filling(sweep: Sweep, folder: Path, specs: Sequence[ExperimentSpec] | None = None) -> Filling:
    """What the store in a folder lacks of a sweep; it is made where there is none.

    What an earlier form of the sweep ran, and this one has too, is not run again. ``specs`` are its
    points where whoever asks has made them already.
    """
    specs = points(sweep) if specs is None else specs
    if not folder.exists():
        store = SweepStore.create(folder.parent, sweep, specs)
    else:
        store = SweepStore(folder)
        store.sweep()  # raises for what is no store
        store.extend(sweep, specs)
        store.discard_partial()
    return Filling(store, len(specs), jobs_left(store, specs, with_alone=False))
