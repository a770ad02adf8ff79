"""Clients alone: the result of each on its own part of the cluster, the reference for sharing.

A part is 1/n of every replica, in speed and in KV pool, so that any n divides a cluster of any dp
and routing stays the same. Such a replica takes n times as long for each iteration, fixed costs
included, and holds 1/n of the requests. n is the number of clients, or by weight the sum of the
weights over the client's own.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.core import PS_PER_S
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.metrics.censored_latency import Percentile, percentile, samples
from fairbench.metrics.client_summary import PERCENTS
from fairbench.schedulers.gateway.registry import ADMISSION, OFF
from fairbench.sim.engine.contract import CONTRACTS
from fairbench.sim.records.tables import tables_of
from fairbench.sim.run import Simulation
from fairbench.workloads.datasets import Source
from fairbench.workloads.plan import ClientPlan, last_arrival_s

# Alone there is no other client to be fair to; whether locality or balance pays depends on the
# workload, and a client alone gets the better of both routers.
LOCAL = "lpm"
ROUTERS = ("round-robin", "preble-e2")


def simulate_alone(
    spec: ExperimentSpec, interrupted: Callable[[], bool] = lambda: False
) -> list[dict[str, Any]]:
    """Return the latency of each well-behaved client alone on 1/n of the cluster.

    A row has ``client``, ``latency_n`` and, in seconds, ``p50_s``, ``p95_s`` and ``p99_s`` (null if
    among refused requests); ``censored`` names the values that are lower bounds. Each is the better
    of both ``ROUTERS`` with ``LOCAL``; the scheduler of ``spec`` does not matter. The cohort is the
    one of the shared run. The result is incomplete if ``interrupted``.
    """
    plans = spec.client_plans()
    source = spec.source()
    last_ps = round(last_arrival_s(plans, spec.seed) * PS_PER_S)
    rows = []
    for plan in plans:
        if interrupted():
            break
        if not plan.misbehaving:
            parts = sum(one.weight for one in plans) / plan.weight
            rows.append(_row(_specs(spec, parts), plan, parts, source, last_ps, interrupted))
    return rows


def _specs(spec: ExperimentSpec, parts: float) -> list[ExperimentSpec]:
    """Return specs of the cluster with one client's KV pool, one per relevant router."""
    engine = CONTRACTS[spec.engine or DEFAULT_ENGINE](spec.settings, load_profile(spec.gpu))
    settings = {**spec.settings, **engine.with_pool(int(engine.pool_tokens // parts))}
    if (policy := f"{ADMISSION}.policy") in settings:
        settings[policy] = OFF  # no request is ahead of this client
    own = {
        "local": LOCAL,
        "gateway": None,
        "saturation": None,
        "routers": None,
        "settings": settings,
    }
    part = spec.model_copy(update=own)
    return [
        part.model_copy(update={"router": router, "scheduler": f"{router}+{LOCAL}"})
        for router in (ROUTERS if spec.routed_workers > 1 else ROUTERS[:1])
    ]


def _row(
    specs: list[ExperimentSpec],
    plan: ClientPlan,
    parts: float,
    source: Source | None,
    last_ps: int,
    interrupted: Callable[[], bool],
) -> dict[str, Any]:
    found: dict[str, Percentile] = {f"p{p}_s": Percentile(inf, False) for p in PERCENTS}
    for spec in specs:
        simulation = Simulation(spec, (plan,), source, slowdown=parts)
        simulation.run(interrupted=interrupted)
        # the window ends with the arrivals of all clients
        simulation.cluster.last_arrival_ps = last_ps
        simulation.cluster.settle()
        facts = simulation.facts()
        tables = tables_of(simulation.cluster.clients, simulation.logs)
        (sample,) = samples(tables.requests, tables.programs, facts)
        for percent, (key, best) in zip(PERCENTS, found.items(), strict=True):
            found[key] = min(best, percentile(sample, percent))
    return {
        "client": plan.client,
        "latency_n": sample.n,
        **{key: one.value_s if isfinite(one.value_s) else None for key, one in found.items()},
        "censored": [key for key, one in found.items() if one.censored and isfinite(one.value_s)],
    }
