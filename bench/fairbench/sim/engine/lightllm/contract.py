"""LightLLM as an engine contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.hardware.lightllm_params import LightLLMParams, lightllm_limits
from fairbench.hardware.timing import TimingProfile
from fairbench.schedulers.params import make_params
from fairbench.sim.engine.contract import WorkerParts
from fairbench.sim.engine.lightllm.worker import LightLLMWorker


class LightLLMContract:
    """An ``EngineContract``. Parameters are those of ``LightLLMParams``."""

    def __init__(self, settings: Mapping[str, Any], profile: TimingProfile) -> None:
        params = make_params("lightllm", LightLLMParams, settings)
        self.limits = lightllm_limits(params, profile)
        self.pool_tokens = self.limits.pool_tokens
        self.most_running = self.limits.max_running_requests
        self.chunk_tokens = self.limits.minibatch_tokens
        given = params.max_total_tokens
        self.mem_fraction_static = None if given else profile.pool.mem_fraction_static

    def with_pool(self, tokens: int) -> Mapping[str, Any]:
        return {"lightllm.max_total_tokens": max(1, tokens)}

    def worker(self, parts: WorkerParts) -> LightLLMWorker:
        return LightLLMWorker(parts, self.limits)
