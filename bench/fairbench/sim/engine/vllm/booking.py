"""Records of admissions and of the prompts computed in a vLLM step."""

from __future__ import annotations

from fairbench.schedulers.base import LocalScheduler
from fairbench.sim.engine.prefill import Prefill, book_admission, shares_of
from fairbench.sim.records.service_log import PrefillShare
from fairbench.sim.sequence import NEVER, Sequence


class Booking:
    """A log that separates first computations from repeated ones.

    A request may lose its memory while its prompt is being computed: then the rest of that prompt
    is still computed for the first time.
    """

    def __init__(self) -> None:
        self._reached: dict[Sequence, int] = {}  # tokens of a preempted prompt computed before

    def admit(self, sequence: Sequence, scheduler: LocalScheduler, now_ps: int) -> None:
        """Call ``book_admission``, with the tokens of a preempted prompt that were never there."""
        fresh = self._fresh(sequence, sequence.filled, sequence.total - sequence.filled)
        book_admission(sequence, scheduler, now_ps, fresh)

    def take_back(self, sequence: Sequence, cached_tokens: int) -> None:
        """Undo ``admit``, because the run ended before the step."""
        if not sequence.retractions:
            sequence.not_admitted(cached_tokens)
            return
        extend = sequence.total - cached_tokens
        sequence.readmitted_ps = NEVER
        sequence.recompute_tokens -= extend - self._fresh(sequence, cached_tokens, extend)

    def preempt(self, sequence: Sequence, decoding: bool) -> None:
        """Record a preemption; the rest of the prompt is not computed this time."""
        left = 0 if decoding else sequence.total - sequence.filled
        sequence.recompute_tokens -= left - self._fresh(sequence, sequence.filled, left)
        reached = sequence.request.input_tokens if decoding else sequence.filled
        self._reached[sequence] = max(reached, self._reached.get(sequence, 0))

    def finish(self, sequence: Sequence) -> None:
        self._reached.pop(sequence, None)

    def shares(self, chunks: list[Prefill], gpu_ps: list[int]) -> dict[str, PrefillShare]:
        """Return a step's shares by client; ``gpu_ps`` is the time of each chunk."""
        return shares_of(chunks, gpu_ps, self._fresh)

    def _fresh(self, sequence: Sequence, cached: int, tokens: int) -> int:
        """Return how many ``tokens`` after ``cached`` are computed for the first time."""
        if not sequence.retractions:
            return tokens
        end = min(cached + tokens, sequence.request.input_tokens)
        return max(end - max(cached, self._reached[sequence]), 0)
