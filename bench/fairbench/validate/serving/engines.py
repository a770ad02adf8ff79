"""The simulated engine that a measured serving run was made on."""

from __future__ import annotations

from fairbench.core import Request
from fairbench.hardware.engine_limits import engine_limits
from fairbench.hardware.engine_params import EngineParams
from fairbench.hardware.timing import TimingProfile
from fairbench.hardware.vllm_limits import VLLMLimits
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.sim.clock import Clock
from fairbench.sim.engine.kv_cache import KVCache
from fairbench.sim.engine.replica import Replica
from fairbench.sim.engine.sglang.worker import Worker
from fairbench.sim.engine.vllm.worker import VLLMWorker
from fairbench.sim.records.service_log import ServiceLog
from fairbench.validate.serving.measured import ServingRun
from fairbench.validate.serving.prompts import refused_by_length

CLOSED_MEM_FRACTION = 0.85  # mem_fraction_static of SGLang, gpu_memory_utilization of vLLM
SGLANG_OPEN_POOL_TOKENS = 444_563  # as the server of the open-loop runs logged


class _Server(FCFS):
    """First come, first served; refuses prompts over the server's limit after tokenizing them."""

    def __init__(self, run: ServingRun) -> None:
        super().__init__(FCFS.Params())
        self._run = run

    def accepts(self, request: Request, now_s: float) -> bool:
        return not refused_by_length(self._run, request)


def engine_worker(run: ServingRun, profile: TimingProfile, clock: Clock) -> Replica:
    """One idle worker with the settings of the run's server, under its own fcfs."""
    log = ServiceLog(sorted(set(run.client)))
    if run.engine == "vllm":
        return VLLMWorker(0, clock, _Server(run), profile, _vllm_limits(run, profile), log)
    pool_tokens = run.pool_tokens or (0 if run.closed else SGLANG_OPEN_POOL_TOKENS)
    params = EngineParams(
        mem_fraction_static=0.0 if pool_tokens else CLOSED_MEM_FRACTION,
        max_total_tokens=pool_tokens,
    )
    limits = engine_limits(params, profile)
    cache = KVCache(limits.pool_tokens)
    return Worker(0, clock, _Server(run), profile, limits, log, cache)


def _vllm_limits(run: ServingRun, profile: TimingProfile) -> VLLMLimits:
    """vLLM's own defaults: a large GPU but the A100 gets a larger budget."""
    pool_tokens = run.pool_tokens or profile.pool.tokens(CLOSED_MEM_FRACTION)
    if run.gpu.startswith("a100"):
        return VLLMLimits(pool_tokens)
    return VLLMLimits(pool_tokens, max_num_batched_tokens=8_192, max_num_seqs=1_024)
