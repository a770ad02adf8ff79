"""Replicas of the simulated cluster in which vLLM's own code takes each decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairbench.core import Request
from fairbench.engine.batch import Prefill
from fairbench.engine.contract import WorkerParts
from fairbench.engine.logs import PrefillShare
from fairbench.engine.sequence import Sequence
from fairbench.engine.vllm import VLLMContract
from fairbench.engine.vllm_running import Booking
from fairbench.hardware.gpu_time import step_parts
from fairbench_engines.replica.process import Channel
from fairbench_engines.replica.remote import RemoteReplica

LIMITS = (
    *("max_num_batched_tokens", "max_num_seqs", "block_size", "enable_prefix_caching"),
    *("scheduler_reserve_full_isl", "watermark", "async_scheduling", "all_blocks"),
    "long_prefill_token_threshold",
)


def opening(settings: Mapping[str, Any], parts: WorkerParts) -> dict[str, Any]:
    """Return the engine's limits, in the form that ``inside.vllm_bridge`` reads."""
    limits = VLLMContract(settings, parts.profile).limits
    return {"limits": {name: getattr(limits, name) for name in LIMITS}}


class VLLMCodeReplica(RemoteReplica):
    """A replica whose process runs vLLM's scheduler."""

    def __init__(self, parts: WorkerParts, settings: Mapping[str, Any], channel: Channel) -> None:
        limits = VLLMContract(settings, parts.profile).limits
        super().__init__(parts, limits, limits.blocks * limits.block_size, channel)
        self._prefilling: set[int] = set()  # requests whose prompts are partly computed
        # number of context tokens that each decoding request had at its first decode step
        self._joined: dict[int, int] = {}
        # largest value in ``_joined`` among the requests of the current decode batch
        self._longest = 0
        self._chunks: list[Prefill] = []
        self._booking = Booking()

    def fits(self, request: Request) -> bool:
        tokens, size = request.input_tokens + request.max_new_tokens - 1, self.limits.block_size
        return bool(-(-tokens // size) <= self.limits.blocks)

    def settle(self) -> None:
        super().settle()
        for chunk in self._chunks:  # undo a step that is unfinished when the run ends
            if chunk.first:
                self._booking.undo_admission(chunk.sequence, chunk.cached)

    def _preempt(self, number: int, sequence: Sequence) -> None:
        decoding = number not in self._prefilling
        self._booking.preempt(sequence, decoding)
        if decoding:
            self._leave(sequence)
        self._prefilling.discard(number)
        self._joined.pop(number, None)

    def _begin(self, answer: Mapping[str, Any]) -> bool:
        if "decode" not in answer:
            return False
        size, context = answer["decode"]
        if answer["chunks"]:
            chunks = [self._chunk(*one) for one in answer["chunks"]]
            self._await_mixed(chunks, size, context, answer["contexts"])
            return True
        if self._stretch is None:
            self._open_stretch(answer["contexts"])
            self._longest = max(self._joined[number] for number, _ in answer["contexts"])
        took_ps = self.profile.decode_ps(size, context)
        took_ps += self.profile.vllm_extra_ps(size, context, self._longest)
        self._await_end(took_ps, lambda: self._book_step(self._completed))
        return True

    def _completed(self) -> list[int]:
        finished = super()._completed()
        for number in finished:
            self._joined.pop(number, None)
        return finished

    def _chunk(self, number: int, before: int, tokens: int, first: bool, last: bool) -> Prefill:
        """Record a chunk of a prompt in a step; the first chunk is the request's admission.

        The chunk has ``tokens`` tokens and follows ``before`` prompt tokens that are cached or
        computed.
        """
        sequence = self._sequences[number]
        if first:
            sequence.filled = before
            self._booking.admit(sequence, self.scheduler, self.clock.now_ps)
        (self._prefilling.discard if last else self._prefilling.add)(number)
        if last:
            self._joined[number] = before + tokens + 1
        return Prefill(sequence, before, tokens, first, last)

    def _await_mixed(
        self,
        chunks: list[Prefill],
        decodes: int,
        context: int,
        contexts: Iterable[tuple[int, int]],
    ) -> None:
        self._end_stretch()
        decoding = self._decoding(contexts)
        self._chunks, start_ps = chunks, self.clock.now_ps
        assert decodes == sum(self._per_client.values())

        def complete() -> list[int]:
            finished = self._completed()
            self._chunks = []
            now_ps, size = self.clock.now_ps, len(chunks) + decodes
            parts = step_parts(self.costs, now_ps - start_ps, computed, decoding, -extra_ps)
            shares = self._booking.shares(chunks, parts.chunks)
            for client, number in self._per_client.items():
                share = shares.setdefault(client, PrefillShare())
                share.output_tokens += number
                share.gpu_ps += parts.clients[client]
            self.log.prefill(self.index, start_ps, now_ps, size, shares, context)
            for chunk in chunks:
                chunk.sequence.filled += chunk.tokens
                if chunk.last:
                    self._join(chunk.sequence)
            return finished

        computed = [(chunk.cached, chunk.tokens) for chunk in chunks]
        extra_ps = self.profile.vllm_extra_ps(decodes, context)
        self._await_end(self.profile.step_ps(computed, decodes, context) + extra_ps, complete)
