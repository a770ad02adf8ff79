"""The simulation of one experiment, from its spec to its result."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fairbench.config import ExperimentSpec
from fairbench.config.own_code import evicts_inside, is_plugged_in
from fairbench.core import PS_PER_S
from fairbench.doors import CODE_GROUP, through
from fairbench.engine.clock import Clock
from fairbench.engine.contract import (
    CONTRACTS,
    CodeRun,
    EngineCode,
    ManagedMemory,
    Replica,
    WorkerOf,
    WorkerParts,
)
from fairbench.engine.logs import MemoryLog, ServiceLog, WorkerMemoryLog
from fairbench.errors import RunFailed, UsageError
from fairbench.files.reader import failure_in_own_file
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.hardware.timing import TimingParams, TimingProfile, perturbed, slowed
from fairbench.metrics.records import Facts
from fairbench.metrics.summary import summarize
from fairbench.metrics.tables import RunResult, Tables
from fairbench.metrics.totals import hit_rates
from fairbench.results.run_facts import (
    cluster_bound,
    costs_of,
    engine_prices,
    fit_limits,
    lone_step,
    run_facts,
)
from fairbench.results.summary import run_header
from fairbench.schedulers.base import Setup
from fairbench.schedulers.eviction.registry import (
    DEFAULT_EVICTION,
    MEMORY,
    MemoryParams,
    build_eviction,
)
from fairbench.schedulers.gateway.registry import DEMOTE
from fairbench.schedulers.params import make_params
from fairbench.schedulers.registry import build_local
from fairbench.sim.cluster import Cluster, Deadlines
from fairbench.sim.front import SimFleet, ingress_of, refuse_stall, reports_of, router_of, setup_of
from fairbench.sim.records import Logs, restore, spooled, tables_of
from fairbench.streams import stream
from fairbench.targets import NO_TARGETS
from fairbench.workloads.disguises import REACTIONS
from fairbench.workloads.plan import (
    ClientPlan,
    last_arrival_s,
    made_ahead,
    program_stream,
    users_of,
)

if TYPE_CHECKING:
    from fairbench.workloads.datasets import Source


@dataclass(frozen=True, slots=True)
class SimulationProgress:
    """The progress of a simulation.

    ``shares`` maps clients to their fractions of the service so far. ``measuring`` is true while
    the metrics are computed after the run.
    """

    sim_time_s: float
    end_s: float | None
    programs_done: int
    programs_started: int
    shares: dict[str, float]
    measuring: bool = False


def progress_of(
    cluster: Cluster, spec: ExperimentSpec, *, measuring: bool = False
) -> SimulationProgress:
    """Return how far a simulation has progressed."""
    total = sum(cluster.service) or 1
    done = len(cluster.program_log)
    return SimulationProgress(
        sim_time_s=cluster.now_s,
        end_s=spec.duration_s,
        programs_done=done,
        programs_started=done + len(cluster.running),
        shares=dict(zip(cluster.clients, (part / total for part in cluster.service), strict=True)),
        measuring=measuring,
    )


# maximum number of clients in a run for which each client is also simulated alone
MOST_ALONE = 16


def managed_memory(
    spec: ExperimentSpec, setup: Setup, log: MemoryLog, clock: Clock, worker: int
) -> ManagedMemory:
    """Return a worker's eviction policy with its log of clients' tokens."""
    policy = build_eviction(spec.eviction or DEFAULT_EVICTION, spec.settings)
    policy.prepare(setup)
    shares = make_params(MEMORY, MemoryParams, spec.settings).share
    return ManagedMemory(policy, WorkerMemoryLog(log, clock, worker), shares)


def hit_rates_alone(
    spec: ExperimentSpec,
    plans: tuple[ClientPlan, ...],
    pool_tokens: int,
    with_pool: Callable[[int], Mapping[str, Any]],
    run: Callable[..., Tables],
) -> dict[str, float]:
    """Return the cache hit rate of each client that runs alone with its share of every KV pool.

    A client's share of memory is proportional to its weight. The eviction policy is LRU. A client
    whose requests are all refused has no hit rate. The result is empty for a run with a single
    client, or with more than ``MOST_ALONE`` clients.

    Args:
        spec: The experiment in which all clients share the cluster.
        plans: The plans of the clients that share the cluster.
        pool_tokens: The KV pool of a replica, in tokens.
        with_pool: Function that returns the engine settings for a given KV pool in tokens.
        run: Function that simulates one client.
    """
    found: dict[str, float] = {}
    if not 1 < len(plans) <= MOST_ALONE:
        return found
    total = sum(plan.weight for plan in plans)
    for plan in plans:
        settings = {**spec.settings, **with_pool(int(pool_tokens * plan.weight / total))}
        own = {"settings": settings, "eviction": None, "memory_records": None}
        (rate,) = hit_rates(run(spec.model_copy(update=own), plan).requests, 1)
        if isfinite(rate):
            found[plan.client] = rate
    return found


PROGRESS_EVERY_PS = PS_PER_S
# number of events, a few milliseconds of work, between two checks for an interruption
EVENTS_AT_ONCE = 64


@contextmanager
def no_collector() -> Iterator[None]:
    """Turn off garbage collection in the ``with`` block, which then takes a third less time.

    Objects from before the ``with`` block are frozen with ``gc.freeze``, so that ``gc.collect``
    examines only objects of this block. Examining all imported objects takes longer than simulating
    a few hundred requests.
    """
    was_on, sets_aside = gc.isenabled(), not gc.get_freeze_count()
    gc.disable()
    if sets_aside:
        gc.freeze()
    try:
        yield
    finally:
        if sets_aside:
            gc.unfreeze()
        if was_on:
            gc.enable()


def simulate(
    spec: ExperimentSpec,
    *,
    folder: Path | None = None,
    on_progress: Callable[[SimulationProgress], None] | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> RunResult:
    """Simulate an experiment.

    Args:
        spec: The experiment to simulate.
        folder: Folder in which records are stored during the run (see ``recover``), or None to keep
            the records in memory.
        on_progress: Function that receives the progress of the run, or None.
        interrupted: Function that returns true if the run should stop early, or None. The result of
            an interrupted run ends at the interruption, and its ``complete`` is False.

    Raises UsageError if no request of the workload can ever fit the KV pool, or if the spec needs
    real servers. Raises RunFailed if the folder cannot be written or a user's scheduler fails.
    """
    if spec.backend is not None:
        raise UsageError(
            f"backend = {spec.backend.kind!r}: this function only simulates; leave backend out"
        )
    plans = spec.client_plans()
    source = spec.source()
    with no_collector(), engine_code(spec) as code:
        try:
            simulation = Simulation(spec, plans, source, code=code)
            with spooled(simulation.logs.by_name(), folder) if folder else nullcontext():
                complete = simulation.run(on_progress, interrupted)
                if on_progress is not None:
                    on_progress(progress_of(simulation.cluster, spec, measuring=True))
                return simulation.result(complete, source)
        except Exception as error:
            if (failed := failure_in_own_file(error)) is not None:
                raise failed from error
            raise


@contextmanager
def engine_code(spec: ExperimentSpec) -> Iterator[EngineCode | None]:
    """Yield the installed engine whose code the run uses, or None if ``engine_code`` is not set."""
    if spec.engine_code is None:
        yield None
        return
    code_of = through(CODE_GROUP, spec.engine or DEFAULT_ENGINE)
    is_ours = evicts_inside(spec.eviction, spec.engine)
    run = CodeRun(
        spec.engine_code,
        spec.local,
        spec.settings,
        spec.seed,
        eviction=None if is_ours else spec.eviction,
        our_eviction=spec.eviction if is_ours else None,
        charges_pass=bool(spec.charge_pass),
    )
    code: EngineCode = code_of(run)
    try:
        yield code
    finally:
        code.close()


class Simulation:
    """The simulated cluster of an experiment. Call ``run`` once, and then ``result``.

    ``slowdown`` multiplies the time of every iteration. ``profile`` replaces the bundled timing
    profile, and ``worker_of`` replaces the experiment's engine. ``code`` is an installed engine
    whose code makes the decisions, or None.
    """

    def __init__(
        self,
        spec: ExperimentSpec,
        plans: tuple[ClientPlan, ...],
        source: Source | None,
        *,
        slowdown: float = 1,
        profile: TimingProfile | None = None,
        worker_of: WorkerOf | None = None,
        code: EngineCode | None = None,
    ) -> None:
        self.spec = spec
        self.code = code
        worker_of = worker_of or (code.worker if code else None)
        self.plans = plans
        self.profile = slowed(profile or load_profile(spec.gpu), slowdown)
        self.timing_error_pct = make_params("timing", TimingParams, spec.settings).error_pct
        if self.timing_error_pct:
            rng = stream(spec.seed, "timing-error")
            self.profile = perturbed(self.profile, self.timing_error_pct, rng)
        self.engine = CONTRACTS[spec.engine or DEFAULT_ENGINE](spec.settings, self.profile)
        self.clock = Clock()
        clients = [plan.client for plan in plans]
        self.log = ServiceLog(clients)
        self.memory_log = MemoryLog(clients) if spec.records_memory else None
        self.admission = spec.admission
        self.router = router_of(spec)
        self.setup = setup_of(spec, plans, self.profile, self.engine.pool_tokens)
        parts = [self._parts(index) for index in range(spec.routed_workers)]
        if spec.prefill is None:
            workers: list[Replica] = [*map(worker_of or self.engine.worker, parts)]
        else:
            from fairbench.engine.disaggregated import disaggregated

            engine = spec.engine or DEFAULT_ENGINE
            decode_count = spec.dp - len(parts)
            workers = disaggregated(spec.settings, engine, self.engine, parts, decode_count)
        # Without disaggregation, ``routed`` must be the list ``workers`` itself, which the cluster
        # empties to free memory.
        routed = workers if spec.prefill is None else workers[: len(parts)]
        self.router.prepare(replace(self.setup, fleet=SimFleet(routed)))
        ingress = ingress_of(spec, self.router, self.clock, workers, self.setup)
        promises = any(plan.targets != NO_TARGETS for plan in plans)
        deadlines = Deadlines(plans, costs_of(spec.gpu)) if promises else None
        self.cluster = Cluster(
            self.clock, self.router, workers, clients, ingress, deadlines,
            demotes=self.admission is not None and self.admission.policy == DEMOTE,
            disaggregated=spec.prefill is not None,
        )  # fmt: skip
        for number, plan in enumerate(plans):
            if users := users_of(plan, seed=spec.seed, source=source):
                self.cluster.add_users(number, users, last_arrival_s((plan,), spec.seed))
                continue
            programs = made_ahead(program_stream(plan, seed=spec.seed, source=source))
            reaction = None if plan.reaction is None else REACTIONS[plan.reaction]()
            self.cluster.add_client(number, programs, plan.in_flight, reaction)

    @property
    def logs(self) -> Logs:
        """The logs that become the tables of the simulation's result."""
        cluster = self.cluster
        return Logs(cluster.request_log, cluster.program_log, self.log, self.memory_log)

    def _parts(self, index: int) -> WorkerParts:
        spec = self.spec
        # If a policy of the engine's real code decides, fairbench's ``fcfs`` is only a placeholder.
        is_ours = spec.engine_code is None or is_plugged_in(spec.local, spec.engine)
        local = build_local(spec.local if is_ours else "fcfs", spec.settings)
        draws = stream(self.spec.seed, f"scheduler/{index}")
        local.prepare(replace(self.setup, shuffle=draws.shuffle, order=self.router.order))
        on_evict = reports_of(self.spec, self.clock, self.router, index)
        memory = None
        if (log := self.memory_log) is not None:
            memory = managed_memory(self.spec, self.setup, log, self.clock, index)
        return WorkerParts(index, self.clock, local, self.profile, self.log, on_evict, memory)

    def run(
        self,
        on_progress: Callable[[SimulationProgress], None] | None = None,
        interrupted: Callable[[], bool] | None = None,
    ) -> bool:
        """Simulate until every program has ended or the run's time limit is reached.

        Return False if ``interrupted`` ended the simulation early.
        """
        report_at_ps = 0
        goes_on = True
        while goes_on:
            if interrupted is not None and interrupted():
                return False
            goes_on = self.cluster.advance(EVENTS_AT_ONCE, self._hard_limit_ps)
            if on_progress is not None and self.clock.now_ps >= report_at_ps:
                report_at_ps = self.clock.now_ps + PROGRESS_EVERY_PS
                on_progress(progress_of(self.cluster, self.spec))
        refuse_stall(self.cluster)
        return True

    def _hard_limit_ps(self) -> int:
        end_ps = self.cluster.last_arrival_ps
        if self.spec.duration_s is not None:
            end_ps = max(end_ps, round(self.spec.duration_s * PS_PER_S))
        return end_ps + round(self.spec.max_drain_s * PS_PER_S)

    def result(self, complete: bool, source: Source | None) -> RunResult:
        """Return the tables and the summary of the simulated run."""
        self.cluster.settle()
        facts = replace(
            self.facts(),
            hit_alone=self._hit_alone(source) if complete else {},
            least_computed=self.cluster.least_computed(self.spec.dp * self.engine.pool_tokens),
        )
        audit = self._pin_audit()
        self.cluster.abandon()
        # Garbage collection frees the KV trees, which take 100 of 670 MiB in an overloaded run.
        gc.collect()
        tables: Tables = tables_of(self.cluster.clients, self.logs)
        if complete and tables.all_refused():
            raise UsageError(
                f"workload {self.spec.workload.name}: every request is larger than the KV pool of "
                f"{self.engine.pool_tokens:,} tokens; give a larger pool or shorter prompts"
            )
        summary = self._header(facts, source, complete) | audit | summarize(tables, facts)
        requests, programs, service, memory = tables.columns()
        return RunResult(requests, programs, service, summary, complete, memory)

    def facts(self) -> Facts:
        """Return the facts about the run that metrics need besides the recorded tables."""
        spec, cluster = self.spec, self.cluster
        bound, reason = cluster_bound(
            *(self.router, cluster.workers[0].scheduler, spec.dp),
            spec.gateway or self._holder,
            disaggregated=spec.prefill is not None,
        )
        return run_facts(
            spec,
            self.plans,
            last_arrival_s=cluster.last_arrival_ps / PS_PER_S,
            end_s=cluster.now_s,
            workers=spec.dp,
            pool_tokens=self.engine.pool_tokens,
            bound=bound,
            bound_unavailable=reason,
            fit=fit_limits(spec.gpu),
            lone=lone_step(spec.gpu),
            prices=engine_prices(self.engine, self.profile),
        )

    @property
    def _holder(self) -> str | None:
        """The feature that can delay requests (admission control or memory shares), or None."""
        if self.admission:
            return "admission control"
        shares = make_params(MEMORY, MemoryParams, self.spec.settings).share
        return f"{MEMORY}.share" if shares else None

    def _header(self, facts: Facts, source: Source | None, complete: bool) -> dict[str, Any]:
        header = run_header(
            self.spec,
            self.plans,
            complete=complete,
            pool_tokens=self.engine.pool_tokens,
            mem_fraction_static=self.engine.mem_fraction_static,
            chunked_prefill_size=self.engine.chunk_tokens,
            timing_profile=self.spec.gpu,
            timing_grade=self.profile.grade,
            timing_error_pct=self.timing_error_pct,
            token_count_method=source.token_count_method if source else None,
            bound=facts.bound,
        )
        code = {"engine_code": self.code.about} if self.code else {}
        return header | code | ({"admission": self.admission.policy} if self.admission else {})

    def _pin_audit(self) -> dict[str, Any]:
        """Return the ``PinAudit`` counts, or {} if the eviction policy has no memory shares."""
        if self.spec.eviction is None or self.code is not None:
            return {}
        from fairbench.engine.client_cache import pin_audit

        audit = pin_audit(worker.cache for worker in self.cluster.workers)
        return {} if audit is None else {"pinned_beyond_share": asdict(audit)}

    def _hit_alone(self, source: Source | None) -> dict[str, float]:
        """Return the cache hit rates of clients that run alone, or {} if memory is not recorded."""
        if self.memory_log is None:
            return {}

        def run(spec: ExperimentSpec, plan: ClientPlan) -> Tables:
            simulation = Simulation(spec, (plan,), source)
            simulation.run()
            simulation.cluster.settle()
            return tables_of(simulation.cluster.clients, simulation.logs)

        engine = self.engine
        return hit_rates_alone(self.spec, self.plans, engine.pool_tokens, engine.with_pool, run)


class Simulated(NamedTuple):
    """The tables of a simulated run, and the facts that describe the run."""

    tables: Tables
    facts: Facts


def simulate_tables(
    spec: ExperimentSpec, interrupted: Callable[[], bool] | None = None
) -> Simulated:
    """Simulate an experiment to its end. Raises RunFailed when ``interrupted`` returns true."""
    with no_collector(), engine_code(spec) as code:
        simulation = Simulation(spec, spec.client_plans(), spec.source(), code=code)
        complete = simulation.run(interrupted=interrupted)
        if not complete:
            raise RunFailed("interrupted")
        simulation.cluster.settle()
    facts = simulation.facts()
    simulation.cluster.abandon()
    return Simulated(tables_of(simulation.cluster.clients, simulation.logs), facts)


def recover(spec: ExperimentSpec, folder: Path) -> RunResult:
    """Return an incomplete result from the records of a killed simulation in ``folder``.

    The result covers the time up to the last record, and lacks work that was not recorded. Raises
    DataError if a file cannot be read.
    """
    source = spec.source()
    plans = spec.client_plans()
    simulation = Simulation(spec, plans, source)
    requests, programs, service, _ = simulation.logs
    restore(simulation.logs.by_name(), folder, len(plans))
    arrivals = programs.column("arrival_ps")
    ends = requests.column("finish_ps"), programs.column("finish_ps"), service.column("end_ps")
    simulation.cluster.last_arrival_ps = int(arrivals.max(initial=0))
    simulation.clock.stop_at(int(np.concatenate([arrivals, *ends]).max(initial=0)))
    return simulation.result(False, source)
