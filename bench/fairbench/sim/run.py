"""A simulation: one experiment on the simulated cluster, spec in, tables and summary out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbench.config import ExperimentSpec
from fairbench.core import PS_PER_S
from fairbench.errors import UsageError
from fairbench.files.python_file import failure_in_own_file
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.hardware.timing import TimingParams, TimingProfile, perturbed, slowed
from fairbench.metrics.records import Facts
from fairbench.metrics.summary import summarize
from fairbench.metrics.tables import RunResult, Tables
from fairbench.results.header import run_header
from fairbench.results.run_facts import cluster_bound, costs_of, fit_limits, lone_step, run_facts
from fairbench.schedulers.gateway.registry import DEMOTE
from fairbench.schedulers.params import make_params
from fairbench.schedulers.registry import build_local
from fairbench.sim.clock import Clock
from fairbench.sim.cluster import Cluster
from fairbench.sim.engine.contract import CONTRACTS, Replica, WorkerOf, WorkerParts
from fairbench.sim.front import SimFleet, ingress_of, refuse_stall, reports_of, router_of, setup_of
from fairbench.sim.in_flight import Deadlines
from fairbench.sim.memory import hit_rates_alone, managed_memory
from fairbench.sim.progress import Progress, progress_of
from fairbench.sim.records.memory_log import MemoryLog
from fairbench.sim.records.service_log import ServiceLog
from fairbench.sim.records.spool import spooled
from fairbench.sim.records.tables import Logs, tables_of
from fairbench.streams import stream
from fairbench.targets import NO_TARGETS
from fairbench.workloads.plan import (
    ClientPlan,
    last_arrival_s,
    made_ahead,
    program_stream,
    users_of,
)
from fairbench.workloads.reactions import REACTIONS

if TYPE_CHECKING:
    from fairbench.workloads.datasets import Source

PROGRESS_EVERY_PS = PS_PER_S
EVENTS_AT_ONCE = 64  # milliseconds between two checks for an interruption


@contextmanager
def no_collector() -> Iterator[None]:
    """Turn off the cycle collector in the block, which saves a third of the time.

    Earlier objects are excluded, unless a caller has done so: a collection in the block then covers
    only objects created there, and not all imported ones, which would take longer than simulating a
    few hundred requests.
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
    on_progress: Callable[[Progress], None] | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> RunResult:
    """Run an experiment.

    With a ``folder``, records are stored there while the simulation runs, outside memory, for
    ``recovery``. ``interrupted`` is called between events; once it returns true the run ends, and
    the result holds the finished requests, with ``complete`` False.

    Raises UsageError if no request of the workload can ever fit the KV pool, or if the spec needs
    real servers; RunFailed if the folder cannot be written or a user's scheduler fails.
    """
    if spec.backend is not None:
        raise UsageError(
            f"backend = {spec.backend.kind!r}: only the simulator can run this; leave backend out"
        )
    plans = spec.client_plans()
    source = spec.source()
    with no_collector():
        try:
            simulation = Simulation(spec, plans, source)
            with spooled(simulation.logs.by_name(), folder) if folder else nullcontext():
                complete = simulation.run(on_progress, interrupted)
                if on_progress is not None:
                    on_progress(progress_of(simulation.cluster, spec, measuring=True))
                return simulation.result(complete, source)
        except Exception as error:
            if (failed := failure_in_own_file(error)) is not None:
                raise failed from error
            raise


class Simulation:
    """The cluster of one experiment. Call ``run`` once, then ``result``.

    ``slowdown`` multiplies every iteration time. ``profile`` and ``worker_of`` replace the bundled
    timing profile and the engine of the experiment.
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
    ) -> None:
        self.spec = spec
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
        records_memory = spec.eviction or spec.memory_records
        self.memory_log = MemoryLog(clients) if records_memory else None
        self.admission = spec.admission
        self.router = router_of(spec)
        self.setup = setup_of(spec, plans, self.profile, self.engine.pool_tokens)
        parts = [self._parts(index) for index in range(spec.routed_workers)]
        if spec.prefill is None:
            workers: list[Replica] = [*map(worker_of or self.engine.worker, parts)]
        else:
            from fairbench.sim.disaggregated.build import (
                disaggregated,
            )  # imported here, because few runs are disaggregated

            workers = disaggregated(spec, self.engine, parts)
        # The list itself, not a copy, which would keep the workers alive after the cluster.
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
        """The logs of the simulation, by the names of the tables."""
        cluster = self.cluster
        return Logs(cluster.request_log, cluster.program_log, self.log, self.memory_log)

    def _parts(self, index: int) -> WorkerParts:
        local = build_local(self.spec.local, self.spec.settings)
        local.prepare(self.setup)
        on_evict = reports_of(self.spec, self.clock, self.router, index)
        memory = None
        if (log := self.memory_log) is not None:
            memory = managed_memory(self.spec, self.setup, log, self.clock, index)
        return WorkerParts(index, self.clock, local, self.profile, self.log, on_evict, memory)

    def run(
        self,
        on_progress: Callable[[Progress], None] | None = None,
        interrupted: Callable[[], bool] | None = None,
    ) -> bool:
        """Simulate until every program has ended, or to the hard limit; False if interrupted."""
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
        facts = replace(self.facts(), hit_alone=self._hit_alone(source) if complete else {})
        self.cluster.abandon()
        gc.collect()  # the KV trees are cycles, which take 100 of 670 MiB in an overloaded run
        tables: Tables = tables_of(self.cluster.clients, self.logs)
        if complete and tables.all_refused():
            raise UsageError(
                f"workload {self.spec.workload.name}: every request is larger than the KV pool of "
                f"{self.engine.pool_tokens:,} tokens; give a larger pool or shorter prompts"
            )
        summary = self._header(facts, source, complete) | summarize(tables, facts)
        requests, programs, service, memory = tables.columns()
        return RunResult(requests, programs, service, summary, complete, memory)

    def facts(self) -> Facts:
        """Return the facts that the metrics need besides the tables."""
        spec, cluster = self.spec, self.cluster
        bound, reason = cluster_bound(
            *(self.router, cluster.workers[0].scheduler, spec.dp),
            spec.gateway or ("admission control" if self.admission else None),
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
        )

    def _header(self, facts: Facts, source: Source | None, complete: bool) -> dict[str, Any]:
        """Return the description of the run, in the keys of a summary."""
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
        return header | ({"admission": self.admission.policy} if self.admission else {})

    def _hit_alone(self, source: Source | None) -> dict[str, float]:
        """Return each client's cache hit rate alone, if the run records memory."""
        if self.memory_log is None:
            return {}

        def run(spec: ExperimentSpec, plan: ClientPlan) -> Tables:
            simulation = Simulation(spec, (plan,), source)
            simulation.run()
            simulation.cluster.settle()
            return tables_of(simulation.cluster.clients, simulation.logs)

        engine = self.engine
        return hit_rates_alone(self.spec, self.plans, engine.pool_tokens, engine.with_pool, run)
