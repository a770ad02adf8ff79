"""SGLang as an engine contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.hardware.engine_limits import engine_limits, mem_fraction
from fairbench.hardware.engine_params import EngineParams
from fairbench.hardware.timing import TimingProfile
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.params import make_params
from fairbench.sim.clock import Clock
from fairbench.sim.engine.contract import OnEvict
from fairbench.sim.engine.kv_cache import KVCache
from fairbench.sim.engine.sglang.worker import Worker
from fairbench.sim.records.service_log import ServiceLog


class SGLangContract:
    """An ``EngineContract``. Parameters are those of ``EngineParams``."""

    def __init__(self, settings: Mapping[str, Any], profile: TimingProfile) -> None:
        params = make_params("engine", EngineParams, settings)
        self.limits = engine_limits(params, profile)
        self.pool_tokens = self.limits.pool_tokens
        self.chunk_tokens = self.limits.chunked_prefill_size
        given = params.max_total_tokens
        self.mem_fraction_static = None if given else mem_fraction(params, profile)

    def with_pool(self, tokens: int) -> Mapping[str, Any]:
        return {"engine.max_total_tokens": max(1, tokens)}

    def worker(
        self,
        index: int,
        clock: Clock,
        scheduler: LocalScheduler,
        profile: TimingProfile,
        log: ServiceLog,
        on_evict: OnEvict | None,
    ) -> Worker:
        cache = KVCache(self.limits.pool_tokens, on_evict)
        return Worker(index, clock, scheduler, profile, self.limits, log, cache)
