"""What a sweep has to simulate, points and clients alone, as tasks in parallel processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from fairbench.cli.progress import task_progress
from fairbench.cli.repeat import run_one
from fairbench.config import ExperimentSpec, identity
from fairbench.execute.interruption import Interruption
from fairbench.execute.local_processes import Failure, Task, run_tasks
from fairbench.results.comparison import alone_key
from fairbench.results.grid import experiment_tables, point_names
from fairbench.results.sweep_store import SweepStore
from fairbench.sim.alone import ROUTERS, simulate_alone
from fairbench.workloads.plan import ClientPlan, expected_programs, program_stream


class Job(NamedTuple):
    """One task of a sweep. ``key`` names its files, ``requests`` says about how long it takes."""

    name: str
    key: str
    requests: float
    task: Task


def jobs_left(
    store: SweepStore, specs: Sequence[ExperimentSpec], *, with_alone: bool = True
) -> list[Job]:
    """What a sweep has still to simulate, the longest first, so that processors finish together.

    Clients alone are simulated only ``with_alone``.
    """
    jobs = _jobs(store, specs, with_alone=with_alone)
    return sorted(jobs, key=lambda job: -job.requests)


def _jobs(store: SweepStore, specs: Sequence[ExperimentSpec], *, with_alone: bool) -> Iterator[Job]:
    finished, alone = store.finished(), set(store.alone())
    for spec, name in zip(specs, point_names(specs), strict=True):
        if spec.backend is not None:
            continue  # one after another, see ``sweep_live``
        key = identity(spec)
        if key not in finished:
            task = partial(run_one, spec, store.runs)
            yield Job(name, key, expected_requests(spec, spec.client_plans()), task)
        key = alone_key(experiment_tables(spec))
        if with_alone and key not in alone:
            alone.add(key)
            good = [plan for plan in spec.client_plans() if not plan.misbehaving]
            requests = len(ROUTERS) * expected_requests(spec, good)
            task = partial(_run_alone, spec, store, key)
            yield Job(f"clients alone as in {name}", key, requests, task)


def _run_alone(
    spec: ExperimentSpec, store: SweepStore, key: str, interrupted: Interruption
) -> dict[str, Any]:
    """In a process of its own: the well-behaved clients of a place, each alone; saved."""
    rows = simulate_alone(spec, interrupted)
    if not interrupted():
        store.save_alone(key, rows)
    return {"complete": not interrupted()}


def run_jobs(
    store: SweepStore, jobs: Sequence[Job], interrupted: Interruption, *, show: bool
) -> list[tuple[Job, str]]:
    """Run all jobs; which went wrong and why, which is also kept in the store."""
    failures = []
    with (
        task_progress(show, [job.requests for job in jobs]) as done,
        closing(run_tasks([job.task for job in jobs], interrupted)) as results,
    ):
        for index, result in results:
            done(index)
            job = jobs[index]
            error = keep_outcome(store, job.key, job.name, result, interrupted)
            if error:
                failures.append((job, error))
    return failures


def keep_outcome(
    store: SweepStore, key: str, name: str, result: Any, interrupted: Interruption
) -> str:
    """Keep why a task failed, or forget that it did before. Returns why, "" if it did not.

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


def _why(result: Any) -> tuple[str, str]:
    if isinstance(result, Failure):
        return str(result.error), result.details
    return result.get("notes", {}).get("complete", "its process was told to stop"), ""


def expected_requests(spec: ExperimentSpec, plans: Iterable[ClientPlan]) -> float:
    """About how many requests some clients make, by the first program of each."""
    return sum(expected_programs(plan) * _requests_of_one(spec, plan) for plan in plans)


def _requests_of_one(spec: ExperimentSpec, plan: ClientPlan) -> int:
    programs = program_stream(plan, seed=spec.seed)
    return next((program.demand.requests for _, program in programs), 0)
