"""SGLang as an engine contract, and its workers that compute prompts for others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from fairbench.hardware.engine_params import EngineLimits, EngineParams, engine_limits, mem_fraction
from fairbench.hardware.timing import TimingProfile
from fairbench.schedulers.params import make_params
from fairbench.sim.engine.contract import WorkerParts
from fairbench.sim.engine.kv_cache import KVCache
from fairbench.sim.engine.sglang.older_worker import OlderWorker
from fairbench.sim.engine.sglang.retraction import store_outputs
from fairbench.sim.engine.sglang.worker import Worker
from fairbench.sim.sequence import Sequence


class PrefillOnly(Worker):
    """A worker whose requests produce one token.

    ``sent`` frees the memory that such a request still holds.
    """

    def _release(self, sequence: Sequence) -> None:
        self._batch_is_full = False
        self.batch.leave(sequence)

    def sent(self, sequence: Sequence) -> None:
        store_outputs(self.cache, sequence)
        self.wake()

    def wake(self) -> None:
        if len(self.waiting):
            super().wake()


W = TypeVar("W", bound=Worker)


def worker_class(limits: EngineLimits) -> type[Worker]:
    """Return the class of workers that follow the rules of the release."""
    return Worker if limits.rules.drops_finished else OlderWorker


class SGLangContract:
    """The contract of SGLang, whose parameters are those of ``EngineParams``."""

    def __init__(self, settings: Mapping[str, Any], profile: TimingProfile) -> None:
        params = make_params("engine", EngineParams, settings)
        self.limits = engine_limits(params, profile)
        self.pool_tokens = self.limits.pool_tokens
        self.most_running = self.limits.max_running_requests
        self.chunk_tokens = self.limits.chunked_prefill_size
        given = params.max_total_tokens
        self.mem_fraction_static = None if given else mem_fraction(params, profile)

    def with_pool(self, tokens: int) -> Mapping[str, Any]:
        return {"engine.max_total_tokens": max(1, tokens)}

    def worker(self, parts: WorkerParts) -> Worker:
        return self.worker_as(worker_class(self.limits), parts)

    def worker_as(self, form: type[W], parts: WorkerParts) -> W:
        pool, memory = self.limits.pool_tokens, parts.memory
        if memory is None:
            cache = KVCache(pool, parts.on_evict)
        else:
            from fairbench.sim.engine.client_cache import ClientCache

            cache = ClientCache(pool, parts.on_evict, memory.policy, memory.log)
        return form(parts, self.limits, cache)
