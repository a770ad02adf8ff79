"""The simulated engine that a measured serving run was made on."""

from __future__ import annotations

from fairbench.errors import DataError
from fairbench.hardware.engine_limits import engine_limits
from fairbench.hardware.engine_params import EngineParams
from fairbench.hardware.timing import TimingProfile
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.sim.clock import Clock
from fairbench.sim.engine.kv_cache import KVCache
from fairbench.sim.engine.replica import Replica
from fairbench.sim.engine.sglang.worker import Worker
from fairbench.sim.records.service_log import ServiceLog
from fairbench.validate.serving.measured import ServingRun

CLOSED_MEM_FRACTION = 0.85  # mem_fraction_static of SGLang, gpu_memory_utilization of vLLM
SGLANG_OPEN_POOL_TOKENS = 444_563  # as the server of the open-loop runs logged


def engine_worker(run: ServingRun, profile: TimingProfile, clock: Clock) -> Replica:
    """One idle worker with the settings of the run's server, under its own fcfs."""
    if run.engine != "sglang":  # one contract so far
        raise DataError(f"{run.name}: engine {run.engine!r} has no contract here")
    params = EngineParams(
        mem_fraction_static=CLOSED_MEM_FRACTION if run.closed else 0.0,
        max_total_tokens=0 if run.closed else SGLANG_OPEN_POOL_TOKENS,
    )
    limits = engine_limits(params, profile)
    log, cache = ServiceLog(sorted(set(run.client))), KVCache(limits.pool_tokens)
    return Worker(0, clock, FCFS(FCFS.Params()), profile, limits, log, cache)
