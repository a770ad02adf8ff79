"""vLLM's decode worker: it computes the last token of a prompt itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fairbench.hardware.gpu_time import prompt_parts
from fairbench.hardware.timing import TimingProfile
from fairbench.sim.clock import END, Clock
from fairbench.sim.disaggregated.decode import DecodeWorker
from fairbench.sim.disaggregated.memory import DecodeMemory
from fairbench.sim.engine.prefill import Prefill, report_prompts
from fairbench.sim.engine.sglang.admission_budget import shares_of
from fairbench.sim.records.service_log import PrefillShare, ServiceLog
from fairbench.sim.sequence import Sequence


class VLLMDecode(DecodeWorker):
    """A decode worker whose first step for a request gives the first token.

    A request that is preempted, the last one that joined, is computed again here. Its prompt and
    outputs fill an iteration of their own, while real steps mix them with decoding.
    """

    def __init__(
        self,
        index: int,
        clock: Clock,
        profile: TimingProfile,
        log: ServiceLog,
        memory: DecodeMemory,
    ) -> None:
        super().__init__(index, clock, profile, log, memory)
        self._fresh: dict[Sequence, None] = {}  # no first token yet
        self._again: list[Prefill] = []  # to be computed again, or under way

    def in_flight(self) -> list[Sequence]:
        return [*super().in_flight(), *(prefill.sequence for prefill in self._again)]

    def _join(self, sequence: Sequence) -> None:
        if not sequence.produced:
            self._fresh[sequence] = None
        self.batch.join(sequence)

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
    """A service log of prefill workers whose answers, of one token, nobody reads."""

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
