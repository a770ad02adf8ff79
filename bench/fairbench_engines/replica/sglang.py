"""Replicas of the simulated cluster in which SGLang's own code takes each decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairbench.core import Request
from fairbench.engine.batch import Prefill, shares_of
from fairbench.engine.contract import WorkerParts
from fairbench.engine.sequence import NEVER, Sequence
from fairbench.engine.sglang_variants import SGLangContract
from fairbench.hardware.gpu_time import step_parts
from fairbench_engines.replica.process import Channel
from fairbench_engines.replica.remote import RemoteReplica

LEAST_RECENT = "lru"  # the default eviction policy of SGLang
OWN_ORDER = "lpm"  # SGLang's policy that sorts only waiting queues of limited length
NO_LIMIT = 10**9


def opening(
    settings: Mapping[str, Any], parts: WorkerParts, policy: str, eviction: str | None
) -> dict[str, Any]:
    """Return the engine's limits and settings, in the form that ``inside.sglang_bridge`` reads."""
    limits = SGLangContract(settings, parts.profile).limits
    sorted_most = None
    if policy == OWN_ORDER:
        sorted_most = settings.get(f"{OWN_ORDER}.queue_limit") or NO_LIMIT
    return {
        "limits": {
            "pool": limits.pool_tokens,
            "chunk": limits.chunked_prefill_size,
            "max_prefill": limits.max_prefill_tokens,
            "slots": limits.max_running_requests,
            "ignore_eos": limits.full_reservation,
            "eviction": eviction or LEAST_RECENT,
        },
        "configured": {
            "conservativeness": limits.schedule_conservativeness,
            "match_limit": sorted_most,
        },
    }


class SGLangCodeReplica(RemoteReplica):
    """A replica whose process runs SGLang's scheduler."""

    def __init__(self, parts: WorkerParts, settings: Mapping[str, Any], channel: Channel) -> None:
        limits = SGLangContract(settings, parts.profile).limits
        super().__init__(parts, limits, limits.pool_tokens, channel)
        self._prefills: list[Prefill] = []
        # requests whose prompts are partly computed
        self._prefilling: set[Sequence] = set()

    def fits(self, request: Request) -> bool:
        return request.input_tokens + request.max_new_tokens + 1 < self._capacity

    def settle(self) -> None:
        super().settle()
        # Undo the admissions of an iteration that has not ended at the end of the run.
        for prefill in self._prefills:
            if prefill.first:
                prefill.sequence.not_admitted(prefill.cached)

    def _preempt(self, number: int, sequence: Sequence) -> None:
        self._leave(sequence)

    def _begin(self, answer: Mapping[str, Any]) -> bool:
        if "prefill" in answer:
            self._start_prefill(answer["prefill"])
        elif "decode" in answer:
            size, context = answer["decode"]
            if self._stretch is None:
                self._open_stretch(answer.get("contexts", ()))
            took_ps = self.profile.decode_ps(size, context)
            self._await_end(took_ps, lambda: self._book_step(self._completed))
        else:
            return False
        return True

    def _start_prefill(self, planned: Iterable[tuple[int, int, int, int]]) -> None:
        self._end_stretch()
        prefills = self._prefills = [self._admitted(*one) for one in planned]
        start_ps = self.clock.now_ps

        def complete() -> list[int]:
            finished = self._completed()
            self._prefills = []
            for one in prefills:
                if one.last:
                    self._join(one.sequence)
            parts = step_parts(self.costs, self.clock.now_ps - start_ps, chunks, {})
            size, shares = len(prefills), shares_of(prefills, parts.chunks)
            self.log.prefill(self.index, start_ps, self.clock.now_ps, size, shares)
            return finished

        chunks = [(one.cached, one.tokens) for one in prefills]
        self._await_end(self.profile.prefill_ps(chunks), complete)

    def _admitted(self, number: int, cached: int, tokens: int, left: int) -> Prefill:
        """Record a request's part of a prefill and, at its first chunk, its admission.

        The prompt has ``cached`` cached and ``left`` uncached tokens. The prefill computes
        ``tokens`` uncached tokens.
        """
        sequence = self._sequences[number]
        first, last = sequence not in self._prefilling, tokens == left
        if first:
            self._book_admission(sequence, cached, left)
        (self._prefilling.discard if last else self._prefilling.add)(sequence)
        return Prefill(sequence, cached, tokens, first, last)

    def _book_admission(self, sequence: Sequence, cached: int, extend: int) -> None:
        now_ps = self.clock.now_ps
        if sequence.admitted_ps == NEVER:
            sequence.admitted_ps = now_ps
            sequence.cached_tokens, sequence.extend_tokens = cached, extend
        else:
            sequence.readmitted_ps = now_ps
            sequence.recompute_tokens += extend
