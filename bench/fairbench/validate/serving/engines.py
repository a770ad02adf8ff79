"""The simulated engine that a measured serving run was made on."""

from __future__ import annotations

from typing import Any

from fairbench.hardware.engine_limits import engine_limits
from fairbench.hardware.engine_params import EngineParams
from fairbench.hardware.timing import TimingProfile
from fairbench.hardware.vllm_limits import VLLMLimits
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.sim.clock import Clock
from fairbench.sim.engine.kv_cache import KVCache
from fairbench.sim.engine.replica import Replica
from fairbench.sim.engine.sglang.worker import Worker
from fairbench.sim.engine.vllm.worker import VLLMWorker
from fairbench.sim.records.service_log import ServiceLog
from fairbench.validate.serving.measured import ServingRun

CLOSED_MEM_FRACTION = 0.85  # mem_fraction_static of SGLang, gpu_memory_utilization of vLLM
LARGE = {"max_num_batched_tokens": 8_192, "max_num_seqs": 1_024}
SGLANG_OPEN_POOL_TOKENS = 444_563  # as the server of the open-loop runs logged


def engine_worker(run: ServingRun, profile: TimingProfile, clock: Clock) -> Replica:
    """Return one idle worker with the settings of the run's server, under its own scheduling."""
    log, scheduler = ServiceLog(sorted(set(run.client))), _scheduler(run)
    if run.engine == "vllm":
        return VLLMWorker(0, clock, scheduler, profile, _vllm_limits(run, profile), log)
    pool_tokens = _stated_pool(run) or (0 if run.closed else SGLANG_OPEN_POOL_TOKENS)
    params = EngineParams(
        mem_fraction_static=0.0 if pool_tokens else CLOSED_MEM_FRACTION,
        max_total_tokens=pool_tokens,
    )
    limits = engine_limits(params, profile)
    cache = KVCache(limits.pool_tokens)
    return Worker(0, clock, scheduler, profile, limits, log, cache)


def _stated_pool(run: ServingRun) -> int:
    return 0 if run.pool_refuted else run.pool_tokens


def _scheduler(run: ServingRun) -> LocalScheduler:
    name, _, quantum = run.policy.partition(" ")
    return DLPM(DLPM.Params(quantum=int(quantum))) if name == "dlpm" else FCFS(FCFS.Params())


def _vllm_limits(run: ServingRun, profile: TimingProfile) -> VLLMLimits:
    """vLLM's own defaults: a large GPU but the A100 gets a larger budget."""
    pool_tokens = _stated_pool(run) or profile.pool.tokens(CLOSED_MEM_FRACTION)
    usual = {} if run.gpu.startswith("a100") else LARGE
    limits: dict[str, Any] = {**usual, **run.limits}
    return VLLMLimits(pool_tokens, **limits)
