"""The contract of vLLM: its settings, and the worker that follows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from fairbench.hardware.timing import TimingProfile
from fairbench.hardware.vllm_params import VLLMParams, vllm_limits
from fairbench.schedulers.params import make_params
from fairbench.sim.engine.contract import WorkerParts
from fairbench.sim.engine.vllm.asynchronous import AsyncVLLMWorker
from fairbench.sim.engine.vllm.worker import VLLMWorker, cache_of

W = TypeVar("W", bound=VLLMWorker)


class VLLMContract:
    """The contract of vLLM, whose parameters are those of ``VLLMParams``."""

    def __init__(self, settings: Mapping[str, Any], profile: TimingProfile) -> None:
        params = make_params("vllm", VLLMParams, settings)
        self.limits = vllm_limits(params, profile)
        self.pool_tokens = self.limits.blocks * self.limits.block_size
        self.most_running = self.limits.max_num_seqs
        self.chunk_tokens = self.limits.max_num_batched_tokens
        given = params.num_gpu_blocks_override
        self.mem_fraction_static = None if given else profile.pool.mem_fraction_static

    def with_pool(self, tokens: int) -> Mapping[str, Any]:
        usable = max(1, tokens // self.limits.block_size)
        return {"vllm.num_gpu_blocks_override": usable + 1}

    def worker(self, parts: WorkerParts) -> VLLMWorker:
        if not self.limits.async_scheduling:
            return self.worker_as(VLLMWorker, parts)
        return self.worker_as(AsyncVLLMWorker, parts)

    def worker_as(self, form: type[W], parts: WorkerParts) -> W:
        cache = cache_of(self.limits, parts.memory)
        cache.on_evict = parts.on_evict
        return form(parts, self.limits, cache)
