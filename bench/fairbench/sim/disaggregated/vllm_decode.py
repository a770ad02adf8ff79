"""vLLM's decode worker: it computes the last token of a prompt itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fairbench.core import Request
from fairbench.hardware.gpu_time import prompt_parts
from fairbench.hardware.vllm_params import VLLMLimits
from fairbench.sim.clock import END
from fairbench.sim.disaggregated.decode import DecodeLimits, DecodeWorker
from fairbench.sim.engine.contract import WorkerParts
from fairbench.sim.engine.prefill import Prefill, report_prompts, shares_of
from fairbench.sim.records.service_log import PrefillShare, ServiceLog
from fairbench.sim.sequence import Sequence

UNLIMITED = 2**62


class VLLMDecode(DecodeWorker):
    """A decode worker whose first step for a request gives the first token.

    A request may take memory if fewer requests run than the limit, and the blocks of its whole
    prompt are free. The request that joined last is preempted first, and is recomputed here. Its
    prompt and outputs fill a separate iteration, while real steps mix them with decoding.
    """

    def __init__(self, parts: WorkerParts, limits: VLLMLimits) -> None:
        pool, size = limits.blocks * limits.block_size, limits.max_num_seqs
        step_by_step = limits.step_by_step
        own = DecodeLimits(pool, size, UNLIMITED, limits.load_cap, step_by_step=step_by_step)
        super().__init__(parts, own)
        self._block_size, self._watermark = limits.block_size, limits.watermark_blocks
        self._fresh: dict[Sequence, None] = {}  # no first token yet
        self._again: list[Prefill] = []  # requests to be recomputed, or being recomputed

    def in_flight(self) -> list[Sequence]:
        return [*super().in_flight(), *(prefill.sequence for prefill in self._again)]

    def fits(self, request: Request) -> bool:
        return request.input_tokens + request.max_new_tokens - 1 <= self.limits.pool_tokens

    def _fits_beside(self, request: Request, tokens: int) -> bool:
        blocks = -(-tokens // self._block_size) + self._watermark
        return (
            self.batch.size < self.limits.most_running and blocks * self._block_size <= self._free
        )

    def _join(self, sequence: Sequence) -> None:
        if not sequence.produced:
            self._fresh[sequence] = None
        super()._join(sequence)

    def _most_steps(self) -> int:
        fresh = not self._fresh.keys().isdisjoint(self.batch.sequences)
        return 1 if fresh else super()._most_steps()

    def _extra_ps(self) -> int:
        batch = self.batch
        if self._profile.vllm_attention is None or not batch.size:
            return 0
        longest = max(one.request.input_tokens + one.produced for one in batch.sequences)
        return self._profile.vllm_extra_ps(batch.size, batch.context_tokens, longest)

    def _end_iteration(self) -> None:
        batch = self.batch
        for sequence in [one for one in self._fresh if one in batch.sequences]:
            if batch.produced(sequence):
                sequence.first_token_ps = self._clock.now_ps
                del self._fresh[sequence]
        super()._end_iteration()

    def _retraction_order(self) -> list[Sequence]:
        return self._running()

    def _store(self, sequence: Sequence, tokens: int) -> None:
        self._fresh.pop(sequence, None)

    def _load(self, sequence: Sequence) -> None:
        sequence.recompute_tokens += sequence.total
        self._again.append(Prefill(sequence, 0, sequence.total, first=True, last=True))

    def _recompute(self) -> bool:
        if not self._again:
            return False
        self._end_stretch()
        chunks = [prefill.chunk for prefill in self._again]
        start_ps = self._clock.now_ps
        end_ps = start_ps + self._profile.prefill_ps(chunks)
        self._computes_prompts = True
        self._clock.at(end_ps, END, self.index, partial(self._end_recompute, start_ps))
        return True

    def _end_recompute(self, start_ps: int) -> None:
        now_ps, self._computes_prompts = self._clock.now_ps, False
        again, self._again = self._again, []
        parts = prompt_parts(self._costs, now_ps - start_ps, [one.chunk for one in again])
        report_prompts(again, parts, self.scheduler)
        for prefill in again:
            self._produce_first(prefill.sequence)
        shares = shares_of(again, parts)
        self._log.prefill(self.index, start_ps, now_ps, len(again), shares)
        self._end_iteration()


class PromptsOnly(ServiceLog):
    """A service log of prefill workers, whose one-token answers are not read."""

    def __init__(self, log: ServiceLog) -> None:
        super().__init__([])
        self.index = log.index
        self._whole = log

    def prefill(
        self,
        worker: int,
        start_ps: int,
        end_ps: int,
        batch: int,
        shares: Mapping[str, PrefillShare],
        context_tokens: int = 0,
    ) -> None:
        for share in shares.values():
            share.output_tokens = 0
        self._whole.prefill(worker, start_ps, end_ps, batch, shares, context_tokens)
