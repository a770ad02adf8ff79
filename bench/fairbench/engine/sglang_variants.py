"""Variants of the simulated SGLang replica, and ``SGLangContract``, which selects a variant.

The variants simulate SGLang before 0.5.23, mixed chunks, and replicas that only compute prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from fairbench.engine.batch import shares_of
from fairbench.engine.contract import WorkerParts
from fairbench.engine.kv_cache import KVCache, KVNode
from fairbench.engine.sequence import Sequence
from fairbench.engine.sglang import SGLangReplica, store_outputs, store_prompt
from fairbench.hardware.engine_params import EngineLimits, EngineParams, engine_limits, mem_fraction
from fairbench.hardware.timing import TimingProfile
from fairbench.schedulers.params import make_params
from fairbench.schedulers.views import CLIP_MAX_NEW_TOKENS


class OlderSGLangReplica(SGLangReplica):
    """A replica of SGLang before 0.5.23, whose finished requests leave at the next decode step.

    Until the next decode step, finished requests keep their slots and their reserved tokens, and
    ``batch_is_full`` stays set. A request that finishes with its first token leaves the batch
    immediately.
    """

    __slots__ = ()

    def _start(self) -> bool:
        # ``_start_decode`` removes finished requests. If no request remains in the batch, the
        # method ``_start`` of the base class runs another admission pass.
        if not self._kept:
            return super()._start()
        return self._start_prefill() or self._start_decode() or super()._start()

    def _start_decode(self) -> bool:
        if self._kept:
            self._kept.clear()
            self._batch_is_full = False
        return super()._start_decode()

    def _release(self, sequence: Sequence) -> None:
        decoded, full = self.batch.private(sequence), self._batch_is_full
        super()._release(sequence)
        if decoded:
            self._kept.append(sequence)
            self._batch_is_full = full

    def _slots(self) -> int:
        return min(super()._slots(), self.limits.max_running_requests - len(self._kept))

    def _reserved_tokens(self) -> int:
        unused = (one.request.max_new_tokens - one.produced for one in self._kept)
        return self.batch.reserved_tokens() + sum(min(n, CLIP_MAX_NEW_TOKENS) for n in unused)


class MixedSGLangReplica(SGLangReplica):
    """A replica with mixed chunks: running requests decode in the iterations that compute prompts.

    Each running request decodes one token, which counts against the token budgets and the memory.
    If the chunks leave no memory for decoding, the running requests wait until the iteration ends.
    A mixed iteration takes the time ``TimingProfile.step_ps``, like a step of vLLM. The additional
    time of SGLang's decode kernel for the longest context is not modelled.
    """

    __slots__ = ("_context_tokens_mixed", "_mixes", "_saved_mixed_ps")

    def __init__(self, parts: WorkerParts, limits: EngineLimits, cache: KVCache) -> None:
        super().__init__(parts, limits, cache)
        self._mixes = False
        self._context_tokens_mixed = self._saved_mixed_ps = 0

    def _chunks_ps(self) -> int:
        batch, cache = self.batch, self.cache
        size = batch.size
        if size > cache.free:
            cache.evict(size - cache.free, batch.per_client)
        self._mixes = 0 < size <= cache.free
        if not self._mixes:
            return super()._chunks_ps()
        context = self._context_tokens_mixed = batch.context_tokens
        saved_ps = self._saved_mixed_ps = self._saved_beside_prompts_ps()
        self.waiting.computed_tokens += size  # SGLang's count includes decoded tokens
        return self._profile.step_ps(self._computed, size, context) - saved_ps

    def _saved_beside_prompts_ps(self) -> int:
        """Return the time (ps) saved because running requests read shared prefixes once."""
        if self._profile.shared_read == 1:
            return 0
        nodes, shared = set[KVNode](), 0
        for sequence in self.batch.sequences:
            node = sequence.node
            assert node is not None
            while (parent := node.parent) is not None:
                if node in nodes:
                    shared += node.length
                nodes.add(node)
                node = parent
        return self._profile.saved_ps(shared)

    def _end_prefill(self) -> None:
        if not self._mixes:
            super()._end_prefill()
            return
        batch, decoding = self.batch, list(self.batch.sequences)
        prefills, self._prefills = self._prefills, []
        self._mixes = self._computes_prompts = self._batch_is_full = False
        self._provide(1)
        self._book_mixed(
            prefills,
            self._prefill_start_ps,
            self._context_tokens_mixed,
            self._saved_mixed_ps,
            shares_of,
        )
        self._ratio.skip_step()
        self._passes.skip_step()
        joined: list[Sequence] = []
        for prefill in prefills:
            store_prompt(self.cache, prefill.sequence, prefill.tokens, self.limits.rules.splits)
            if prefill.last:
                self._produce_first(prefill.sequence)
                joined.append(prefill.sequence)
        # In SGLang's batch, requests whose prompts were just computed precede the running requests.
        batch.rearrange([*joined, *decoding])
        self._end_iteration()

    def _steps_under_way(self) -> int:
        return 1 if self._mixes else super()._steps_under_way()


class SGLangPrefillOnly(SGLangReplica):
    """A replica that only computes prompts; each of its requests produces a single token.

    A finished request keeps its memory until ``free_sent`` is called.
    """

    def _release(self, sequence: Sequence) -> None:
        self._batch_is_full = False
        self.batch.remove_sequence(sequence)

    def free_sent(self, sequence: Sequence) -> None:
        """Free the memory of a request whose KV cache has been sent."""
        store_outputs(self.cache, sequence)
        self.wake_if_waiting()


R = TypeVar("R", bound=SGLangReplica)


def replica_class(limits: EngineLimits) -> type[SGLangReplica]:
    """Return the replica class for an engine's settings and its simulated release."""
    if limits.enable_mixed_chunk:
        return MixedSGLangReplica
    return SGLangReplica if limits.rules.drops_finished else OlderSGLangReplica


class SGLangContract:
    """The ``EngineContract`` of SGLang, whose settings are ``EngineParams``."""

    mixed_steps = False

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

    def worker(self, parts: WorkerParts) -> SGLangReplica:
        return self.worker_as(replica_class(self.limits), parts)

    def worker_as(self, form: type[R], parts: WorkerParts) -> R:
        pool, memory = self.limits.pool_tokens, parts.memory
        if memory is None:
            return form(parts, self.limits, KVCache(pool, parts.on_evict))
        from fairbench.engine.client_cache import ClientCache, memory_share

        cache = ClientCache(pool, parts.on_evict, memory.policy, memory.log)
        replica = form(parts, self.limits, cache)
        replica.share = memory_share(memory, cache, replica.waiting)
        return replica
