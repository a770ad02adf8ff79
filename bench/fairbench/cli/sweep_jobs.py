"""What a sweep has to run, its points and its clients alone, as tasks in parallel processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from fairbench.cli.interrupt import Interruption
from fairbench.cli.pool import Failure, Task, run_tasks
from fairbench.cli.progress import task_progress
from fairbench.cli.repeat import run_one
from fairbench.config import ExperimentSpec, identity
from fairbench.report.comparison import alone_key
from fairbench.report.places import point_names, tables_of
from fairbench.report.sweep_store import SweepStore
from fairbench.sim.alone import ROUTERS, simulate_alone
from fairbench.workloads.plan import ClientPlan, expected_programs, program_stream


class Job(NamedTuple):
    """One task of a sweep. ``key`` names its files, ``requests`` says about how long it takes."""

    name: str
    key: str
    requests: float
    task: Task


def jobs_left(store: SweepStore, specs: Sequence[ExperimentSpec]) -> list[Job]:
    """What a sweep has not done yet, the longest first, so that processors finish together."""
    return sorted(_jobs(store, specs), key=lambda job: -job.requests)


def _jobs(store: SweepStore, specs: Sequence[ExperimentSpec]) -> Iterator[Job]:
    finished, alone = store.finished(), set(store.alone())
    for spec, name in zip(specs, point_names(specs), strict=True):
        key = identity(spec)
        if key not in finished:
            task = partial(run_one, spec, store.runs)
            yield Job(name, key, expected_requests(spec, spec.client_plans()), task)
        key = alone_key(tables_of(spec))
        if key not in alone:
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
            if not isinstance(result, Failure) and result["complete"]:
                store.clear_failure(job.key)
            elif not interrupted():
                error, traceback = _why(result)
                failures.append((job, error))
                store.save_failure(job.key, job.name, error, traceback)
    return failures


def _why(result: Any) -> tuple[str, str]:
    if isinstance(result, Failure):
        return str(result.error), result.details
    return "its process was told to stop", ""


def expected_requests(spec: ExperimentSpec, plans: Iterable[ClientPlan]) -> float:
    """About how many requests some clients make, by the first program of each."""
    return sum(expected_programs(plan) * _requests_of_one(spec, plan) for plan in plans)


def _requests_of_one(spec: ExperimentSpec, plan: ClientPlan) -> int:
    programs = program_stream(plan, kind=spec.workload.program, seed=spec.seed)
    return next((program.demand.requests for _, program in programs), 0)
