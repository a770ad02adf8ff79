"""The eviction policies of a simulation, and the log of who holds its KV memory."""

from __future__ import annotations

from fairbench.config import ExperimentSpec
from fairbench.schedulers.eviction.registry import DEFAULT_EVICTION, build_eviction
from fairbench.schedulers.setup import Setup
from fairbench.sim.clock import Clock
from fairbench.sim.engine.replica import ManagedMemory
from fairbench.sim.records.memory_log import MemoryLog, WorkerMemoryLog


def memory_log_of(spec: ExperimentSpec, clients: list[str]) -> MemoryLog | None:
    """Return an empty memory log, None for an experiment that keeps none."""
    return MemoryLog(clients) if spec.eviction or spec.memory_records else None


def managed_memory(
    spec: ExperimentSpec, setup: Setup, log: MemoryLog | None, clock: Clock, worker: int
) -> ManagedMemory | None:
    """Return the eviction policy and the log of one worker, None without a log."""
    if log is None:
        return None
    policy = build_eviction(spec.eviction or DEFAULT_EVICTION, spec.settings)
    policy.prepare(setup)
    return ManagedMemory(policy, WorkerMemoryLog(log, clock, worker))
