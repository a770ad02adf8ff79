"""The simulated engine that replays a measured serving run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from fairbench.core import Request
from fairbench.engine.clock import Clock
from fairbench.engine.contract import Replica, WorkerParts
from fairbench.engine.kv_cache import KVCache
from fairbench.engine.logs import ServiceLog
from fairbench.engine.sglang import SGLangReplica
from fairbench.engine.vllm import VLLMReplica
from fairbench.errors import DataError
from fairbench.hardware.catalogue import model_configs
from fairbench.hardware.engine_params import (
    EngineParams,
    VLLMLimits,
    default_batch,
    engine_limits,
    vllm_pool_tokens,
)
from fairbench.hardware.timing import TimingProfile
from fairbench.schedulers.base import LocalScheduler, Setup
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.registry import build_local
from fairbench_calibration.profiling.model_shape import shape_of, vllm_memory
from fairbench_studies.validation.policies import scheduler_of
from fairbench_studies.validation.serving.async_vllm import AsyncVLLMReplica
from fairbench_studies.validation.serving.measured import ServingRun
from fairbench_studies.validation.serving.prompts import refused_by_length

# ``CLOSED_MEM_FRACTION`` is the fraction of GPU memory that engines use in closed-loop runs.
CLOSED_MEM_FRACTION = 0.85
SYNC_HOST_MS = 2.5
"""The time (ms) that the GPU idles between two steps of vLLM with synchronous scheduling.

vLLM issue 10634 reports that the GPU idles 5 to 6 ms between steps, and expects 2 to 3 ms if the
server's threads do not block each other. Profiles measured on a server include the GPU's idle time
between steps. With asynchronous scheduling, the GPU never waits for the host, so ``host_ms`` of
profiles that were not measured on a server is set to 0.
"""
# If a profile was not measured on a server, the profile's grade begins with a text in
# ``_NOT_SERVED``.
_NOT_SERVED = ("operators:", "derived:", "fitted to measured operators")
ASYNC_FROM = (0, 14)  # first release of vLLM that uses async_scheduling by default
# The published command lines of the DLPM authors' fork of SGLang set a memory fraction of
# ``FORK_MEM_FRACTION``. SGLang's default memory fraction was ``FORK_DEFAULT_MEM_FRACTION`` in 2024.
FORK_MEM_FRACTION, FORK_DEFAULT_MEM_FRACTION = 0.7, 0.88
# If a server was started without --schedule-policy, the ``policy`` of its runs is a value in
# ``SERVER_DEFAULT``. Runs with a policy outside ``SERVER_DEFAULT`` used the DLPM authors' fork of
# SGLang, with a scheduling pass after each step.
SERVER_DEFAULT = ("", "default")
SGLANG_OPEN_POOL_TOKENS = 444_563  # KV pool size in tokens, from the log of the open-loop runs
SGLANG_OPEN_SERVERS = ("a100-80gb/llama-3.1-8b/tp1/", "h100-80gb/llama-3.1-8b/tp1/")


class _Server(FCFS):
    """A first-come-first-served scheduler that refuses prompts which are too long."""

    def __init__(self, run: ServingRun) -> None:
        super().__init__(FCFS.Params())
        self._run = run

    def accepts(self, request: Request, now_s: float) -> bool:
        return not refused_by_length(self._run, request)


def engine_worker(run: ServingRun, profile: TimingProfile, clock: Clock) -> Replica:
    """Return an idle worker with the settings and the scheduler of the run's server."""
    log = ServiceLog(sorted(set(run.client)))
    waits = run.engine == "vllm" and not _async_scheduling(run)
    if run.engine == "vllm" and profile.grade.startswith(_NOT_SERVED):
        profile = replace(profile, host_ms=profile.host_ms + SYNC_HOST_MS if waits else 0.0)
    parts = WorkerParts(0, clock, _local(run), profile, log)
    if run.engine == "vllm":
        form = VLLMReplica if waits else AsyncVLLMReplica
        return form(parts, _vllm_limits(run, profile))
    pool_tokens = _pool_tokens(run, profile)
    params = EngineParams(
        mem_fraction_static=0.0 if pool_tokens else CLOSED_MEM_FRACTION,
        max_total_tokens=pool_tokens,
        batch_is_full=None if run.policy in SERVER_DEFAULT else False,
    )
    limits = engine_limits(params, profile)
    cache = KVCache(limits.pool_tokens)
    return SGLangReplica(parts, limits, cache)


def _pool_tokens(run: ServingRun, profile: TimingProfile) -> int:
    """Return the tokens in SGLang's KV pool, or 0 if the memory fraction defines the size."""
    if tokens := believable_pool(run):
        return tokens
    pool = profile.pool
    if run.pool_tokens:
        return pool.tokens(FORK_MEM_FRACTION)
    if run.direct:
        fork = run.policy not in SERVER_DEFAULT
        return pool.tokens(FORK_DEFAULT_MEM_FRACTION if fork else pool.mem_fraction_static)
    if run.closed:
        return 0
    logged = profile.profile_id.startswith(SGLANG_OPEN_SERVERS)
    return SGLANG_OPEN_POOL_TOKENS if logged else pool.tokens(pool.mem_fraction_static)


def believable_pool(run: ServingRun) -> int:
    """Return the KV pool size (tokens) that a run states, or 0 if measurements contradict it.

    The pool must hold the prompts of all requests that decode at the same time. Runs with a gateway
    are not checked, because their prompts share prefixes. If a run states a KV pool that is too
    small for its prompts, ``with_doubts`` rejects the pool size in all runs with equal settings.
    """
    if not run.direct or not run.pool_tokens:
        return run.pool_tokens
    return 0 if run.pool_doubted or _contradicts(run) else run.pool_tokens


def _contradicts(run: ServingRun) -> bool:
    return run.direct and most_decoding_tokens(run) > run.pool_tokens > 0


def with_doubts(runs: Iterable[ServingRun]) -> list[ServingRun]:
    """Mark runs with a doubtful KV pool size: a run with equal settings contradicts the size.

    The server had the same flags in all runs with equal settings.
    """
    every = list(runs)
    doubted = {_settings(run) for run in every if _contradicts(run)}
    return [replace(run, pool_doubted=_settings(run) in doubted) for run in every]


def _settings(run: ServingRun) -> tuple[object, ...]:
    return (
        *(run.engine, run.engine_version, run.gpu, run.model, run.tp, run.direct),
        *(run.policy, run.quantum, run.pool_tokens),
    )


def most_decoding_tokens(run: ServingRun) -> int:
    """Return the measured maximum of the total prompt tokens of decoding requests."""
    served = run.served
    tokens = run.prompt_tokens[served]
    first_s = (run.submit_s + run.ttft_s)[served]
    at_s = np.concatenate([first_s, (run.submit_s + run.latency_s)[served]])
    change = np.concatenate([tokens, -tokens])
    return int(np.cumsum(change[np.lexsort((change, at_s))]).max(initial=0))


def _local(run: ServingRun) -> LocalScheduler:
    if run.policy in SERVER_DEFAULT:
        return _Server(run)
    if run.engine == "vllm" and run.policy != "fcfs":
        raise DataError(f"field 'policy' = {run.policy!r}: must be fcfs or default for vllm")
    replayed, settings = scheduler_of(run.policy, run.quantum)
    local = build_local(replayed.local, settings)
    local.prepare(Setup(tuple(sorted(set(run.client)))))
    return local


def _async_scheduling(run: ServingRun) -> bool:
    """Return whether the run's release of vLLM uses asynchronous scheduling by default.

    If a run's release of vLLM is unknown, True is returned, because all such runs in the data were
    made in 2026.
    """
    parts = re.findall(r"\d+", run.engine_version)[:2]
    return not parts or tuple(map(int, parts)) >= ASYNC_FROM


def _vllm_limits(run: ServingRun, profile: TimingProfile) -> VLLMLimits:
    """Return the vLLM limits that a run states, with the GPU's defaults for missing limits."""
    most_tokens, most_sequences = default_batch(profile)
    tokens = run.max_num_batched_tokens or most_tokens
    sequences = run.max_num_seqs or most_sequences
    if tokens < sequences:
        raise DataError(
            f"field 'max_num_batched_tokens' = {tokens}: must be at least max_num_seqs = "
            f"{sequences}"
        )
    pool_tokens = believable_pool(run) or _vllm_pool(profile, tokens, sequences)
    return VLLMLimits(pool_tokens, max_num_batched_tokens=tokens, max_num_seqs=sequences)


def _vllm_pool(profile: TimingProfile, tokens: int, sequences: int) -> int:
    """Return the tokens in vLLM's KV pool, or in SGLang's pool if vLLM's memory use is unknown."""
    gpu, model, parallel, _ = profile.profile_id.split("/", 3)
    pool, memory = profile.pool, profile.pool.vllm
    if model in model_configs():
        shape = shape_of(model_configs()[model]["config"], model)
        memory = vllm_memory(pool, shape, gpu, int(parallel.removeprefix("tp")))
    if memory is None:
        return pool.tokens(CLOSED_MEM_FRACTION)
    memory = replace(memory, gpu_memory_utilization=CLOSED_MEM_FRACTION)
    return vllm_pool_tokens(pool, memory, tokens=tokens, sequences=sequences)
