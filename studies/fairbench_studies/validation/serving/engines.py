"""The simulated engine for a measured serving run."""

from __future__ import annotations

import re

import numpy as np

from fairbench.core import Request
from fairbench.errors import DataError
from fairbench.hardware.engine_params import EngineParams, engine_limits
from fairbench.hardware.timing import TimingProfile
from fairbench.hardware.vllm_params import VLLMLimits
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.registry import build_local
from fairbench.schedulers.setup import Setup
from fairbench.sim.clock import Clock
from fairbench.sim.engine.contract import Replica, WorkerParts
from fairbench.sim.engine.kv_cache import KVCache
from fairbench.sim.engine.sglang.worker import Worker
from fairbench.sim.engine.vllm.worker import VLLMWorker
from fairbench.sim.records.service_log import ServiceLog
from fairbench_studies.validation.policies import scheduler_of
from fairbench_studies.validation.serving.async_vllm import AsyncVLLMWorker
from fairbench_studies.validation.serving.measured import ServingRun
from fairbench_studies.validation.serving.profiles import gpu_name
from fairbench_studies.validation.serving.prompts import refused_by_length

CLOSED_MEM_FRACTION = 0.85  # mem_fraction_static of SGLang, gpu_memory_utilization of vLLM
ASYNC_FROM = (0, 14)  # first release of vLLM with async_scheduling by default
# Fractions of the DLPM authors' fork: of the published command lines that also set 20,000 tokens,
# and SGLang's default in 2024.
FORK_MEM_FRACTION, FORK_DEFAULT_MEM_FRACTION = 0.7, 0.88
# A server without --schedule-policy, which is not the fork. The fork, of summer 2024, streams after
# each decode step and then makes a pass, whether or not the last pass found room.
SERVER_DEFAULT = ("", "default")
SGLANG_OPEN_POOL_TOKENS = 444_563  # as logged by the server of the open-loop runs


class _Server(FCFS):
    """A server that runs requests in order of arrival, and refuses prompts that are too long."""

    def __init__(self, run: ServingRun) -> None:
        super().__init__(FCFS.Params())
        self._run = run

    def accepts(self, request: Request, now_s: float) -> bool:
        return not refused_by_length(self._run, request)


def engine_worker(run: ServingRun, profile: TimingProfile, clock: Clock) -> Replica:
    """Return one idle worker with the settings and the scheduler of the run's server."""
    log = ServiceLog(sorted(set(run.client)))
    parts = WorkerParts(0, clock, _local(run), profile, log)
    if run.engine == "vllm":
        form = AsyncVLLMWorker if _async_scheduling(run) else VLLMWorker
        return form(parts, _vllm_limits(run, profile))
    pool_tokens = _pool_tokens(run, profile)
    params = EngineParams(
        mem_fraction_static=0.0 if pool_tokens else CLOSED_MEM_FRACTION,
        max_total_tokens=pool_tokens,
        batch_is_full=None if run.policy in SERVER_DEFAULT else False,
    )
    limits = engine_limits(params, profile)
    cache = KVCache(limits.pool_tokens)
    return Worker(parts, limits, cache)


def _pool_tokens(run: ServingRun, profile: TimingProfile) -> int:
    """Return the pool of a run of SGLang in tokens; 0 for the default fraction."""
    if tokens := believable_pool(run):
        return tokens
    pool = profile.pool
    if run.pool_tokens:
        return pool.tokens(FORK_MEM_FRACTION)
    if run.direct:
        fork = run.policy not in SERVER_DEFAULT
        return pool.tokens(FORK_DEFAULT_MEM_FRACTION if fork else pool.mem_fraction_static)
    return 0 if run.closed else SGLANG_OPEN_POOL_TOKENS


def believable_pool(run: ServingRun) -> int:
    """Return the pool that a run states; 0 if its own times contradict it.

    The prompts of requests between first token and end are all in the pool at once, unless they
    share prefixes, which only happens in runs with a gateway.
    """
    if not run.direct or not run.pool_tokens:
        return run.pool_tokens
    return run.pool_tokens if most_decoding_tokens(run) <= run.pool_tokens else 0


def most_decoding_tokens(run: ServingRun) -> int:
    """Return the most prompt tokens of requests that were measured to decode at the same time."""
    served = run.served
    tokens = run.prompt_tokens[served]
    first_s = (run.submit_s + run.ttft_s)[served]
    at_s = np.concatenate([first_s, (run.submit_s + run.latency_s)[served]])
    change = np.concatenate([tokens, -tokens])
    return int(np.cumsum(change[np.lexsort((change, at_s))]).max(initial=0))


def _local(run: ServingRun) -> LocalScheduler:
    """Return the scheduler that a run's ``policy`` names, by default fcfs."""
    if run.policy in SERVER_DEFAULT:
        return _Server(run)
    if run.engine == "vllm" and run.policy != "fcfs":
        raise DataError(f"field 'policy' = {run.policy!r}: must be fcfs or default for vllm")
    replayed, settings = scheduler_of(run.policy, run.quantum)
    local = build_local(replayed.local, settings)
    local.prepare(Setup(tuple(sorted(set(run.client)))))
    return local


def _async_scheduling(run: ServingRun) -> bool:
    """Return whether the run's release of vLLM schedules ahead by default.

    A run that does not state its release is assumed to have one, because all such runs of the data
    were made in 2026.
    """
    parts = re.findall(r"\d+", run.engine_version)[:2]
    return not parts or tuple(map(int, parts)) >= ASYNC_FROM


def _vllm_limits(run: ServingRun, profile: TimingProfile) -> VLLMLimits:
    """Return vLLM's defaults; large GPUs except the A100 have a larger token budget."""
    pool_tokens = believable_pool(run) or profile.pool.tokens(CLOSED_MEM_FRACTION)
    small = gpu_name(run.gpu).startswith("a100")
    tokens = run.max_num_batched_tokens or (2_048 if small else 8_192)
    sequences = run.max_num_seqs or (256 if small else 1_024)
    if tokens < sequences:
        raise DataError(
            f"field 'max_num_batched_tokens' = {tokens}: must be at least max_num_seqs = "
            f"{sequences}"
        )
    return VLLMLimits(pool_tokens, max_num_batched_tokens=tokens, max_num_seqs=sequences)
