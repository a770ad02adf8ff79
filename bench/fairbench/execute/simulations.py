"""Simulations as tasks of an executor: runs, the jobs of a sweep, and how outcomes are kept."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

from fairbench.config import ExperimentSpec, identity
from fairbench.config.spec import experiment_tables
from fairbench.execute.context import RunContext
from fairbench.execute.executor import Failure, Saving, Task
from fairbench.execute.interruption import Interruption
from fairbench.results.comparison import alone_key
from fairbench.results.grid import point_names
from fairbench.results.manifest import Stopwatch, build_manifest
from fairbench.results.store import save_run
from fairbench.results.sweep_store import SweepStore, save_alone
from fairbench.schedulers.params import cost_names
from fairbench.sim.alone import ROUTERS, simulate_alone
from fairbench.sim.run import simulate
from fairbench.workloads.datasets import HUB_PREFIX
from fairbench.workloads.plan import ClientPlan, expected_programs, program_stream


def files_of(spec: ExperimentSpec) -> tuple[str, ...]:
    """Return the files that an experiment reads: traces, costs, data set and tokenizer.

    The workload itself is part of the spec. Files of ``FAIRBENCH_SCHEDULERS`` and
    ``FAIRBENCH_PROGRAMS`` belong to every experiment and are left out. A hub name refers to no file
    of the user's.
    """
    found = [*_called_file(spec.workload.model_dump()), *cost_names(spec.settings)]
    if spec.dataset_path and not spec.dataset_path.startswith(HUB_PREFIX):
        found.append(spec.dataset_path)
    if spec.tokenizer and Path(spec.tokenizer).exists():
        found.append(spec.tokenizer)
    return tuple(dict.fromkeys(found))


def _called_file(value: Any) -> Iterator[str]:
    """Yield every text under a key ``file``, such as a trace in the parameters of arrivals."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            if key == "file" and isinstance(one, str):
                yield one
            yield from _called_file(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _called_file(one)


def simulation(spec: ExperimentSpec, parent: Path) -> Saving:
    """Return an executor task that simulates and saves a run, and returns its summary."""
    return Saving(partial(_simulate_and_save, spec), parent, files_of(spec))


def _simulate_and_save(
    spec: ExperimentSpec, parent: Path, interrupted: Interruption
) -> dict[str, Any]:
    watch = Stopwatch.start()
    result = simulate(spec, interrupted=interrupted)
    manifest = build_manifest(spec, complete=result.complete, watch=watch)
    save_run(parent, spec, result.tables(), result.summary, manifest)
    return result.summary


class Job(NamedTuple):
    """A task of a sweep.

    ``key`` names the files of the task; ``requests`` estimates its duration.
    """

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
    rows = simulate_alone(spec, interrupted)
    if not interrupted():
        save_alone(folder, key, rows)
    return {"complete": not interrupted()}


def run_jobs(store: SweepStore, jobs: Sequence[Job], context: RunContext) -> list[FailedPoint]:
    """Run all jobs; return the failures, which are also stored."""
    results = context.run([job.task for job in jobs], [job.requests for job in jobs])
    named = (((jobs[index].key, jobs[index].name), result) for index, result in results)
    return keep_all(store, named, len(jobs), context)


def keep_all(
    store: SweepStore,
    results: Iterable[tuple[tuple[str, str], Any]],
    count: int,
    context: RunContext,
) -> list[FailedPoint]:
    """Store and report the results of ``count`` tasks as they end, by (key, name of the task)."""
    failures = []
    for number, ((key, name), result) in enumerate(results, start=1):
        if error := keep_outcome(store, key, name, result, context.interrupted):
            failures.append(FailedPoint(name, error))
        tell_ended(context, name, error, number, count)
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
    """Report that a task has ended, and whether it failed, unless interrupted."""
    if not context.interrupted():
        context.progress.ended(f"{name} failed" if error else name, number, count)


def _why(result: Any) -> tuple[str, str]:
    if isinstance(result, Failure):
        return str(result.error), result.details
    return result.get("notes", {}).get("complete", "its process was told to stop"), ""


ADDITIONS = 500_000  # a few hundredths of a second
ADDITIONS_PER_REQUEST = 10_000  # range of six schedulers on bundled workloads: 4,500 to 30,000
BYTES_PER_REQUEST = 220  # bytes of the stored tables
LARGE = 200_000  # number of requests above which the estimate is announced


class Estimate(NamedTuple):
    """The estimated cost of several simulations: total requests, seconds and bytes.

    The seconds are for this machine under its present load, and are right within a factor of three.
    Requests differ in cost, and the machine's load may change. ``load`` is the number of other
    processes that want a processor.
    """

    runs: int
    requests: float
    seconds: float
    bytes: float
    load: float

    @property
    def large(self) -> bool:
        """Return whether the work is large enough to announce."""
        return self.requests > LARGE

    def __str__(self) -> str:
        minutes = max(1, round(self.seconds / 60))
        busy = f", which are shared with {self.load:.0f} busy processes" if self.load >= 0.5 else ""
        return (
            f"{self.runs:,} simulations, about {self.requests:,.0f} requests: roughly {minutes:,} "
            f"min on {_processors()} processors{busy}, {self.bytes / 1e6:,.0f} MB of records"
        )


def estimate(requests: Iterable[float]) -> Estimate:
    """Estimate simulations with the given request counts, run in parallel on all processors."""
    counts = list(requests)
    total, load, processors = sum(counts), _load(), _processors()
    share = processors / (processors + load)  # part of a processor's time that each simulation gets
    seconds = total * ADDITIONS_PER_REQUEST * _addition_s() / processors / share
    return Estimate(len(counts), total, seconds, total * BYTES_PER_REQUEST, load)


def _processors() -> int:
    return os.cpu_count() or 1


def _load() -> float:
    """Return the recent number of runnable processes; 0 if the system does not report it."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0


def _addition_s() -> float:
    """Measure a plain addition, to account for the speed of this machine."""
    begun_s, left = process_time(), ADDITIONS
    while left:
        left += -1
    return (process_time() - begun_s) / ADDITIONS
