"""The eviction policies of a simulation, and the log of clients' KV memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.metrics.memory import hit_rates
from fairbench.metrics.tables import Tables
from fairbench.schedulers.eviction.registry import DEFAULT_EVICTION, build_eviction
from fairbench.schedulers.setup import Setup
from fairbench.sim.clock import Clock
from fairbench.sim.engine.contract import ManagedMemory
from fairbench.sim.records.memory_log import MemoryLog, WorkerMemoryLog
from fairbench.workloads.plan import ClientPlan

MOST_ALONE = 16  # limit on clients, each of which is simulated once more


def managed_memory(
    spec: ExperimentSpec, setup: Setup, log: MemoryLog, clock: Clock, worker: int
) -> ManagedMemory:
    """Return the eviction policy and the log of one worker."""
    policy = build_eviction(spec.eviction or DEFAULT_EVICTION, spec.settings)
    policy.prepare(setup)
    return ManagedMemory(policy, WorkerMemoryLog(log, clock, worker))


def hit_rates_alone(
    spec: ExperimentSpec,
    plans: tuple[ClientPlan, ...],
    pool_tokens: int,
    with_pool: Callable[[int], Mapping[str, Any]],
    run: Callable[..., Tables],
) -> dict[str, float]:
    """Return the cache hit rate that each client has alone on its share of every pool.

    The share is by weight, and ``with_pool`` returns settings with this share; engine, router and
    speed stay the same, and eviction is LRU. ``run`` simulates one client. A client whose requests
    were all refused is left out, and so are all clients if there are more than ``MOST_ALONE``.
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
