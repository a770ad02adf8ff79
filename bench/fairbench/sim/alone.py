"""Simulations of each client alone on its part of the cluster, as a reference for shared runs.

A client's part is 1/n of every replica's speed and KV pool; n is the sum of all clients' weights
divided by the client's weight. A part has as many replicas as the whole cluster, so the router has
the same choices as in a shared run. An iteration of a lone client takes n times as long as on the
whole cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.config.own_code import evicts_inside
from fairbench.core import PS_PER_S
from fairbench.engine.contract import CONTRACTS
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.metrics.censored_latency import PERCENTS, Percentile, percentile, samples
from fairbench.schedulers.gateway.registry import ADMISSION, OFF
from fairbench.sim.records import tables_of
from fairbench.sim.run import Simulation
from fairbench.workloads.datasets import Source
from fairbench.workloads.plan import ClientPlan, last_arrival_s

# Each client is simulated alone with LPM, once with each router; the lower latencies are used.
# Preble E2 suits workloads that need cache locality, and round robin suits other workloads.
LOCAL = "lpm"
ROUTERS = ("round-robin", "preble-e2")


def simulate_alone(
    spec: ExperimentSpec, interrupted: Callable[[], bool] = lambda: False
) -> list[dict[str, Any]]:
    """Simulate each well-behaved client alone on its part of the cluster; return its latencies.

    - ``client`` is the name of the client.
    - ``latency_n`` is the number of latencies that were measured.
    - ``p50_s``, ``p95_s`` and ``p99_s`` are latency percentiles in seconds, each the lowest of all
      routers in ``ROUTERS``. A percentile is None if its rank falls on a refused request.
    - ``censored`` names the percentiles that are only lower bounds.

    The scheduler in ``spec`` has no effect on the result. Latencies are measured in the time window
    of the run that all clients share. If ``interrupted`` returns true, the result lacks the clients
    not yet simulated.
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
    """Return the experiments that simulate a client's part of the cluster, one per router."""
    engine = CONTRACTS[spec.engine or DEFAULT_ENGINE](spec.settings, load_profile(spec.gpu))
    settings = {**spec.settings, **engine.with_pool(int(engine.pool_tokens // parts))}
    if (policy := f"{ADMISSION}.policy") in settings:
        settings[policy] = OFF
    is_modelled = spec.engine_code is None or evicts_inside(spec.eviction, spec.engine)
    own = {
        "local": LOCAL,
        "engine_code": None,
        "charge_pass": None,
        # The simulator does not model eviction policies of an engine's real code.
        "eviction": spec.eviction if is_modelled else None,
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
        # Metrics use the time window of the run with all clients, which ends with the last arrival.
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
