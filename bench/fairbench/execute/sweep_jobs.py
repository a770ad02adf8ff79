"""The jobs of a sweep as tasks (points, and clients alone), and how their outcomes are stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fairbench.config import ExperimentSpec, identity
from fairbench.config.spec import experiment_tables
from fairbench.execute.context import RunContext
from fairbench.execute.executor import Failure, Saving, Task
from fairbench.execute.interruption import Interruption
from fairbench.execute.simulations import files_of, simulation
from fairbench.results.comparison import alone_key
from fairbench.results.grid import point_names
from fairbench.results.sweep_store import SweepStore, save_alone
from fairbench.sim.alone import ROUTERS, simulate_alone
from fairbench.workloads.plan import ClientPlan, expected_programs, program_stream


class Job(NamedTuple):
    """A task of a sweep. ``key`` names its files; ``requests`` estimates its duration."""

    name: str
    key: str
    requests: float
    task: Task


def jobs_left(
    store: SweepStore, specs: Sequence[ExperimentSpec], *, with_alone: bool = True
) -> list[Job]:
    """Return the simulations of ``specs`` that ``store`` lacks, longest first.

    Clients are also simulated alone if ``with_alone``.
    """
    jobs = _jobs(store, specs, with_alone=with_alone)
    return sorted(jobs, key=lambda job: -job.requests)


def _jobs(store: SweepStore, specs: Sequence[ExperimentSpec], *, with_alone: bool) -> Iterator[Job]:
    finished, alone = store.finished(), set(store.alone())
    for spec, name in zip(specs, point_names(specs), strict=True):
        if spec.backend is not None:
            continue  # one after another, see ``live_run``
        key = identity(spec)
        if key not in finished:
            task = simulation(spec, store.runs)
            yield Job(name, key, expected_requests(spec, spec.client_plans()), task)
        key = alone_key(experiment_tables(spec))
        if with_alone and key not in alone:
            alone.add(key)
            good = [plan for plan in spec.client_plans() if not plan.misbehaving]
            requests = len(ROUTERS) * expected_requests(spec, good)
            task = Saving(partial(_run_alone, spec, key), store.alone_folder, files_of(spec))
            yield Job(f"clients alone as in {name}", key, requests, task)


def _run_alone(
    spec: ExperimentSpec, key: str, folder: Path, interrupted: Interruption
) -> dict[str, Any]:
    """Simulate each well-behaved client of a configuration alone, and save the result."""
    rows = simulate_alone(spec, interrupted)
    if not interrupted():
        save_alone(folder, key, rows)
    return {"complete": not interrupted()}


def run_jobs(store: SweepStore, jobs: Sequence[Job], context: RunContext) -> list[FailedPoint]:
    """Run all jobs; return the failures, which are also stored."""
    failures = []
    running = context.executor.run([job.task for job in jobs], context.interrupted)
    with (
        context.progress.tasks([job.requests for job in jobs]) as done,
        closing(running) as results,
    ):
        for number, (index, result) in enumerate(results, start=1):
            done(index)
            job = jobs[index]
            error = keep_outcome(store, job.key, job.name, result, context.interrupted)
            if error:
                failures.append(FailedPoint(job.name, error))
            tell_ended(context, job.name, error, number, len(jobs))
    return failures


def expected_requests(spec: ExperimentSpec, plans: Iterable[ClientPlan]) -> float:
    """Estimate how many requests clients make, from the first program of each."""
    return sum(expected_programs(plan) * _requests_of_one(spec, plan) for plan in plans)


def _requests_of_one(spec: ExperimentSpec, plan: ClientPlan) -> int:
    programs = program_stream(plan, seed=spec.seed)
    return next((program.demand.requests for _, program in programs), 0)


class FailedPoint(NamedTuple):
    """A failed run: its name, and the reason in one line."""

    name: str
    error: str


def keep_outcome(
    store: SweepStore, key: str, name: str, result: Any, interrupted: Interruption
) -> str:
    """Store why a task failed, or remove an old failure; return the reason or "".

    ``result`` is a summary or a Failure. A task that was interrupted has not failed.
    """
    if not isinstance(result, Failure) and result["complete"]:
        store.clear_failure(key)
        return ""
    if interrupted():
        return ""
    error, traceback = _why(result)
    store.save_failure(key, name, error, traceback)
    return error


def tell_ended(context: RunContext, name: str, error: str, number: int, count: int) -> None:
    """Report that a task has ended, and whether it failed, unless interrupted.

    Args:
        context: Interruption flag, progress receiver and executor of the tasks.
        name: Name of the task.
        error: Message of the task's error, or empty if the task succeeded.
        number: Number of tasks that have ended, with this one.
        count: Number of all tasks.
    """
    if not context.interrupted():
        context.progress.ended(f"{name} failed" if error else name, number, count)


def _why(result: Any) -> tuple[str, str]:
    if isinstance(result, Failure):
        return str(result.error), result.details
    return result.get("notes", {}).get("complete", "its process was told to stop"), ""
