"""From the logs of a simulation to the tables and the summary that are saved."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nextafter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fairbench.core import PS_PER_S, ServiceBound
from fairbench.metrics.arrow import named
from fairbench.metrics.records import (
    Client,
    Facts,
    Floats,
    Ints,
    Programs,
    Requests,
    ServiceLog,
    Window,
)
from fairbench.metrics.summary import summarize
from fairbench.schedulers.base import LocalScheduler, Router
from fairbench.sim.columns import Columns
from fairbench.sim.sequence import NEVER, REFUSED

if TYPE_CHECKING:
    from fairbench.config import ExperimentSpec
    from fairbench.sim.run import Simulation
    from fairbench.workloads.datasets import Source

STATUS_NAMES = ("finished", "refused", "unfinished")


@dataclass(frozen=True, slots=True)
class Tables:
    """The three tables of a run; clients are indices into ``clients``."""

    clients: list[str]
    requests: Requests
    programs: Programs
    service: ServiceLog

    def all_refused(self) -> bool:
        """Whether there were requests and every one was refused."""
        status = self.requests.status
        return len(status) > 0 and bool((status == REFUSED).all())

    def columns(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Requests, programs and service as columns to save: clients and states by name."""
        saved = []
        for table in (self.requests, self.programs, self.service):
            columns: dict[str, Any] = dict(table.to_columns())
            columns["client"] = named(columns["client"], self.clients)
            if "status" in columns:
                columns["status"] = named(columns["status"], STATUS_NAMES)
            saved.append(columns)
        return saved[0], saved[1], saved[2]


class Logs(NamedTuple):
    """What a simulation wrote down, by the names under which it is saved."""

    requests: Columns
    programs: Columns
    service: Columns


def tables_of(clients: list[str], logs: Logs) -> Tables:
    """The tables of a settled cluster, in order of their ids, service by start and worker.

    The logs cannot be read afterwards: a long run fills memory once, not twice.
    """
    for log in logs:
        log.file_block()  # all of them, so that what is on disk is complete
    requests, programs, service = logs
    by_request = np.argsort(requests.column("request_id"))
    by_program = np.argsort(programs.column("program_id"))
    # Workers write a stretch down when it is over, whoever began first.
    by_start = np.lexsort((service.column("worker"), _seconds(service.column("start_ps"))))
    return Tables(
        clients,
        Requests.from_columns(_arrays(requests, by_request)),
        Programs.from_columns(_arrays(programs, by_program)),
        ServiceLog.from_columns(_arrays(service, by_start)),
    )


def _arrays(log: Columns, order: Ints) -> dict[str, Any]:
    """The columns in this order, ``*_ps`` as ``*_s``. The log is no more to be read."""
    arrays: dict[str, Any] = {}
    for name in log.names:
        values = log.column(name)[order]
        if name.endswith("_ps"):
            arrays[name.removesuffix("_ps") + "_s"] = _seconds(values)
        else:
            arrays[name] = values
    log.release()
    return arrays


def _seconds(times_ps: Ints) -> Floats:
    """Picoseconds in seconds, NaN for never."""
    seconds: Floats = times_ps / PS_PER_S
    seconds[times_ps == NEVER] = np.nan
    return seconds


def facts_of(simulation: Simulation) -> Facts:
    """What the metrics need to know beside the tables."""
    spec, cluster = simulation.spec, simulation.cluster
    bound, reason = cluster_bound(simulation.router, cluster.workers[0].scheduler, spec.dp)
    return Facts(
        clients=tuple(Client(plan.client, plan.misbehaving) for plan in simulation.plans),
        window=run_window(spec, cluster.last_arrival_ps / PS_PER_S, cluster.now_s),
        horizon_s=cluster.now_s,
        workers=spec.dp,
        pool_tokens=simulation.limits.pool_tokens,
        latency=spec.workload.latency,
        bound=bound,
        bound_workers=spec.dp,
        bound_unavailable=reason,
    )


def run_window(spec: ExperimentSpec, last_arrival_s: float, now_s: float) -> Window:
    """[end of warm-up, end of arrivals); the whole run where that would be hardly a window.

    Fixed counts of programs may end within the warm-up, and a run may be interrupted there. The
    end of the run itself (``now_s``) is included, since its last tokens come just then.
    """
    end_s = spec.duration_s
    if end_s is None:
        end_s = last_arrival_s
        if end_s <= 2 * spec.warmup_s:
            return Window(0.0, nextafter(now_s, inf))
    if now_s <= spec.warmup_s:
        return Window(0.0, nextafter(now_s, inf))
    return Window(spec.warmup_s, end_s)


def cluster_bound(
    router: Router, local: LocalScheduler, workers: int
) -> tuple[ServiceBound | None, str]:
    """The theorem that holds for router and local scheduler together, or None and why."""
    bound = local.service_bound()
    if bound is None:
        return None, f"{local.name} bounds no service difference"
    if workers == 1:
        return bound, ""
    if not router.cluster_theorem:
        return None, f"no theorem covers {local.name} behind {router.name} on several workers"
    return ServiceBound(bound.view, bound.quantum_tokens, router.cluster_theorem), ""


def summary_of(
    simulation: Simulation, tables: Tables, facts: Facts, source: Source | None, complete: bool
) -> dict[str, Any]:
    """The summary as JSON types: metrics, and what was run."""
    spec = simulation.spec
    metrics = summarize(tables.requests, tables.programs, tables.service, facts).to_json()
    if facts.bound is None:
        metrics["notes"]["bound_source"] = facts.bound_unavailable
    return {
        "simulated": True,
        "complete": complete,
        "timing_profile": spec.gpu,
        "timing_grade": simulation.profile.grade,
        "timing_error_pct": simulation.timing_error_pct,
        "scheduler": spec.scheduler,
        "router": spec.router,
        "local": spec.local,
        "workload": spec.workload.name,
        "scenario": spec.scenario,
        "dp": spec.dp,
        "seed": spec.seed,
        "latency": spec.workload.latency,
        "mem_fraction_static": simulation.mem_fraction_static,
        "pool_tokens": simulation.limits.pool_tokens,
        "chunked_prefill_size": simulation.limits.chunked_prefill_size,
        "token_count_method": source.token_count_method if source else None,
        "bound_source": facts.bound.source if facts.bound else None,
        **metrics,
    }
