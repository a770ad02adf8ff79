"""A call of a program, and its attempts on the way to a record."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.core import Prompt, prompt_tokens
from fairbench.live.driver.stream import Stream
from fairbench.live.driver.target import Lengths
from fairbench.live.records import FINISHED, RequestRecord
from fairbench.live.request_tag import worker_in


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """A program's call. ``due_s`` is the time at which the call should be sent."""

    program_id: int
    client: str
    depth: int
    prompt: Prompt
    output_tokens: int
    max_new_tokens: int
    due_s: float

    @property
    def true_tokens(self) -> int:
        """The number of tokens that the call produces if the server respects the limits."""
        return min(self.output_tokens, self.max_new_tokens)

    def limits(self, lengths: Lengths) -> tuple[int, int | None]:
        """Return the (maximum, minimum) number of tokens that the server is told."""
        if lengths == "header":
            return self.max_new_tokens, None
        return self.true_tokens, self.true_tokens if lengths == "exact" else None


@dataclass(slots=True)
class Attempt:
    """An attempt: ``max_tokens`` and ``min_tokens`` are sent; the other fields are filled in."""

    request_id: int
    call: ProgramCall
    max_tokens: int
    min_tokens: int | None
    stream: Stream
    held_s: float = 0.0
    sent_s: float | None = None
    error: str | None = None

    def record(self, status: str, now_s: float) -> RequestRecord:
        """Return the record of the attempt, which ended at ``now_s``."""
        call, stream, answer = self.call, self.stream, self.stream.answer
        first_s, last_s = stream.chunk_s[:1], stream.chunk_s[-1:]
        if status == FINISHED and not stream.chunk_s:  # an answer without a token
            first_s = last_s = [now_s]
        admitted_s = None
        if self.sent_s is not None and answer.queue_s is not None:
            admitted_s = self.sent_s + answer.queue_s
        reported = answer.input_tokens
        return RequestRecord(
            request_id=self.request_id,
            program_id=call.program_id,
            client=call.client,
            depth=call.depth,
            worker=stream.worker if stream.worker >= 0 else worker_in(answer.answer_id),
            arrival_s=call.due_s + self.held_s,
            sent_s=self.sent_s,
            held_s=self.held_s,
            admitted_s=admitted_s,
            first_token_s=first_s[0] if first_s else None,
            finish_s=last_s[0] if status == FINISHED else None,
            input_tokens=prompt_tokens(call.prompt) if reported is None else reported,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
            max_new_tokens=self.max_tokens,
            retractions=answer.retractions,
            status=status,
            error=self.error,
            chunk_s=stream.chunk_s,
            chunk_tokens=stream.chunk_tokens,
        )
