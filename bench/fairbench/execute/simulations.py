"""Simulations as tasks of an executor: single runs, and the runs of a sweep.

``outdated_runs`` finds stored runs whose engine code has changed since the run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import islice
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

from fairbench.config import ExperimentSpec, identity
from fairbench.config.cluster import ENGINE_CODE
from fairbench.config.spec import experiment_tables
from fairbench.doors import CODE_GROUP, through
from fairbench.errors import UsageError
from fairbench.execute.tasks import Failure, Interruption, RunContext, Saving, Task
from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.results.comparison import alone_key
from fairbench.results.experiments import point_names
from fairbench.results.manifest import Stopwatch, build_manifest
from fairbench.results.store import StoredRun, SweepStore, save_alone, save_run
from fairbench.results.summary import code_name, is_same_code
from fairbench.schedulers.params import cost_names
from fairbench.sim.alone import ROUTERS, simulate_alone
from fairbench.sim.run import simulate
from fairbench.workloads.datasets import HUB_PREFIX
from fairbench.workloads.plan import ClientPlan, expected_programs, program_stream


def files_of(spec: ExperimentSpec) -> tuple[str, ...]:
    """Return the files that an experiment reads: traces, timing profile, data set and tokenizer.

    The workload file is left out, because the experiment contains its content. The files in
    ``FAIRBENCH_SCHEDULERS`` and ``FAIRBENCH_PROGRAMS`` are left out, because they apply to all
    experiments. A data set on the Hugging Face hub is left out, because it is not a local file.
    """
    found = [*_called_file(spec.workload.model_dump()), *cost_names(spec.settings)]
    if spec.dataset_path and not spec.dataset_path.startswith(HUB_PREFIX):
        found.append(spec.dataset_path)
    if spec.tokenizer and Path(spec.tokenizer).exists():
        found.append(spec.tokenizer)
    return tuple(dict.fromkeys(found))


def _called_file(value: Any) -> Iterator[str]:
    """Yield the value of each key ``file`` in nested tables, such as the path of a trace."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            if key == "file" and isinstance(one, str):
                yield one
            yield from _called_file(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _called_file(one)


def simulation(spec: ExperimentSpec, parent: Path) -> Saving:
    """Return an executor's task that simulates and saves a run, and returns the run's summary."""
    return Saving(partial(_simulate_and_save, spec), parent, files_of(spec))


def _simulate_and_save(
    spec: ExperimentSpec, parent: Path, interrupted: Interruption
) -> dict[str, Any]:
    watch = Stopwatch.start()
    result = simulate(spec, interrupted=interrupted)
    manifest = build_manifest(spec, complete=result.complete, watch=watch)
    save_run(parent, spec, result.tables(), result.summary, manifest)
    return result.summary


class SimulationJob(NamedTuple):
    """A simulation of a sweep, as a task of an executor.

    ``key`` names the task's files, and ``requests`` is the expected number of requests.
    """

    name: str
    key: str
    requests: float
    task: Task


def jobs_left(
    store: SweepStore, specs: Sequence[ExperimentSpec], *, with_alone: bool = True
) -> list[SimulationJob]:
    """Return the simulations that are missing in ``store``, the longest first.

    If ``with_alone`` is True, simulations of each client alone on the cluster are included. Raises
    UsageError if the engine code of a finished run has changed since that run.
    """
    check_same_code(store, specs)
    return sorted(_jobs(store, specs, with_alone=with_alone), key=lambda job: -job.requests)


def _jobs(
    store: SweepStore, specs: Sequence[ExperimentSpec], *, with_alone: bool
) -> Iterator[SimulationJob]:
    finished, alone = store.finished(), set(store.alone())
    for spec, name in zip(specs, point_names(specs), strict=True):
        if spec.backend is not None:
            # Runs on real servers are executed by ``live_runs``, one after another.
            continue
        key = identity(spec)
        if key not in finished:
            task = simulation(spec, store.runs)
            yield SimulationJob(name, key, expected_requests(spec, spec.client_plans()), task)
        key = alone_key(experiment_tables(spec))
        if with_alone and key not in alone:
            alone.add(key)
            good = [plan for plan in spec.client_plans() if not plan.misbehaving]
            requests = len(ROUTERS) * expected_requests(spec, good)
            task = Saving(partial(_run_alone, spec, key), store.alone_folder, files_of(spec))
            yield SimulationJob(f"clients alone as in {name}", key, requests, task)


def _run_alone(
    spec: ExperimentSpec, key: str, folder: Path, interrupted: Interruption
) -> dict[str, Any]:
    rows = simulate_alone(spec, interrupted)
    if not interrupted():
        save_alone(folder, key, rows)
    return {"complete": not interrupted()}


def run_jobs(
    store: SweepStore, jobs: Sequence[SimulationJob], context: RunContext
) -> list[FailedPoint]:
    """Run all simulations, store their results, and return the failures."""
    results = context.run([job.task for job in jobs], [job.requests for job in jobs])
    named = (((jobs[index].key, jobs[index].name), result) for index, result in results)
    return keep_all(store, named, len(jobs), context)


def keep_all(
    store: SweepStore,
    results: Iterable[tuple[tuple[str, str], Any]],
    count: int,
    context: RunContext,
) -> list[FailedPoint]:
    """Store and report the result of each task that ends.

    ``results`` yields ``((key, name), result)``, with ``key`` and ``name`` of a SimulationJob.
    """
    failures = []
    for number, ((key, name), result) in enumerate(results, start=1):
        if error := keep_outcome(store, key, name, result, context.interrupted):
            failures.append(FailedPoint(name, error))
        tell_ended(context, name, error, number, count)
    return failures


def expected_requests(spec: ExperimentSpec, plans: Iterable[ClientPlan]) -> float:
    """Estimate the number of requests of all clients, from the first program of each client."""
    return sum(
        expected_programs(plan) * program.demand.requests
        for plan in plans
        for _, program in islice(program_stream(plan, seed=spec.seed), 1)
    )


class FailedPoint(NamedTuple):
    """The name of a failed run, and the reason in one line."""

    name: str
    error: str


def keep_outcome(
    store: SweepStore, key: str, name: str, result: Any, interrupted: Interruption
) -> str:
    """Store the error of a failed task and return the reason, or return "" for a finished task.

    ``result`` is a finished run's summary or a ``Failure``. A finished run removes the stored error
    of an earlier attempt. An interrupted task does not count as failed.
    """
    if not isinstance(result, Failure) and result["complete"]:
        store.clear_failure(key)
        return ""
    if interrupted():
        return ""
    if isinstance(result, Failure):
        error, traceback = str(result.error), result.details
    else:
        error = result.get("notes", {}).get("complete", "its process was told to stop")
        traceback = ""
    store.save_failure(key, name, error, traceback)
    return error


def tell_ended(context: RunContext, name: str, error: str, number: int, count: int) -> None:
    """Report that a task has ended or failed, except after an interruption."""
    if not context.interrupted():
        context.progress.ended(f"{name} failed" if error else name, number, count)


# A test of the processor's speed makes ``ADDITIONS`` additions, which take less than 0.1 s.
ADDITIONS = 500_000
# With the six schedulers and the bundled workloads, the simulation of a request takes as long as
# 4,500 to 30,000 additions.
ADDITIONS_PER_REQUEST = 10_000
BYTES_PER_REQUEST = 220
LARGE = 200_000  # Above this number of requests, commands first estimate the simulation's time.


class TimeEstimate(NamedTuple):
    """The estimated cost of several simulations: total requests, seconds and bytes.

    ``seconds`` may be wrong by a factor of three, because the cost of a request varies and the load
    of this machine may change. ``load`` counts the other processes that run or wait for a
    processor.
    """

    runs: int
    requests: float
    seconds: float
    bytes: float
    load: float

    @property
    def large(self) -> bool:
        """Whether users should first see how long the simulations will take."""
        return self.requests > LARGE

    def __str__(self) -> str:
        minutes = max(1, round(self.seconds / 60))
        busy = f", which are shared with {self.load:.0f} busy processes" if self.load >= 0.5 else ""
        return (
            f"{self.runs:,} simulations, about {self.requests:,.0f} requests: roughly {minutes:,} "
            f"min on {_processors()} processors{busy}, {self.bytes / 1e6:,.0f} MB of records"
        )


def estimate(requests: Iterable[float]) -> TimeEstimate:
    """Estimate the cost of simulations from each simulation's number of ``requests``."""
    counts = list(requests)
    total, load, processors = sum(counts), 0.0, _processors()
    with suppress(AttributeError, OSError):  # Some systems do not report their load.
        load = os.getloadavg()[0]
    # ``share`` is the fraction of processor time that other processes leave to the simulations.
    share = processors / (processors + load)
    seconds = total * ADDITIONS_PER_REQUEST * _addition_s() / processors / share
    return TimeEstimate(len(counts), total, seconds, total * BYTES_PER_REQUEST, load)


def _processors() -> int:
    return os.cpu_count() or 1


def _addition_s() -> float:
    begun_s, left = process_time(), ADDITIONS
    while left:
        left += -1
    return (process_time() - begun_s) / ADDITIONS


class OutdatedRun(NamedTuple):
    """A stored run whose engine code has changed since the run.

    ``stored`` and ``installed`` are digests of the engine code at the time of the run and now.
    """

    identity: str
    python: str
    stored: Mapping[str, Any]
    installed: Mapping[str, Any]

    def __str__(self) -> str:
        return (
            f"decided by {code_name(self.stored)}, and {self.python} now has "
            f"{code_name(self.installed)}"
        )


def outdated_runs(
    finished: Mapping[str, StoredRun], specs: Iterable[ExperimentSpec]
) -> list[OutdatedRun]:
    """Return the finished runs whose engine code has changed since they were stored.

    Args:
        finished: The stored runs, by the identity (hash) of their experiments.
        specs: Experiments; an experiment without ``engine_code`` or without a stored run is
            skipped.

    Raises UsageError if a Python interpreter in ``engine_code`` is missing, or lacks its engine.
    """
    installed = cache(_installed)
    found = []
    for spec in specs:
        run = finished.get(key := identity(spec)) if spec.engine_code else None
        if run is None or spec.engine_code is None:
            continue
        now, stored = installed(spec.engine_code, spec.engine), run.summary[ENGINE_CODE]
        if not is_same_code(stored, now):
            found.append(OutdatedRun(key, spec.engine_code, stored, now))
    return found


def _installed(python: str, engine: str | None) -> dict[str, Any]:
    code: dict[str, Any] = through(CODE_GROUP, engine or DEFAULT_ENGINE).installed(python)
    return code


def check_same_code(store: SweepStore, specs: Iterable[ExperimentSpec]) -> None:
    """Raise UsageError if the engine code of a sweep's finished runs has changed since the runs."""
    coded = [spec for spec in specs if spec.engine_code]
    if outdated := outdated_runs(store.finished() if coded else {}, coded):
        runs = "1 finished run was" if len(outdated) == 1 else f"{len(outdated)} finished runs were"
        raise UsageError(
            f"{store.path}: {runs} {outdated[0]}; restore the engine code with which these runs "
            "were made, or begin again "
            "in another directory"
        )
