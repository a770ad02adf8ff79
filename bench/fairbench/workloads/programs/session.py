"""Sessions of a recorded file, drawn at random: the same calls with different content."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Self

from annotated_types import Ge, Le

from fairbench.core import Prompt, Segment, prompt_tokens
from fairbench.errors import UsageError
from fairbench.workloads.items import Branch, Call, Item, Recorded, all_calls
from fairbench.workloads.programs.replay import Calls
from fairbench.workloads.traces.read import TraceParams, read_trace

MOST_TOKENS = 10**7


class Session(Calls):
    """A session drawn from a trace. Two draws share only the parts that sessions share."""

    kind = "session"

    @dataclass(frozen=True, slots=True)
    class Params:
        """``file`` is a trace with sessions, as a path or a name in a folder of ``FAIRBENCH_DATA``.

        Only sessions whose longest prompt has ``least_tokens`` to ``most_tokens`` are drawn. A
        session ends after ``most_calls`` calls, not counting those of sub-agents. ``think_scale``
        multiplies all pauses.
        """

        file: str
        least_tokens: Annotated[int, Ge(0), Le(MOST_TOKENS)]
        most_tokens: Annotated[int, Ge(1), Le(MOST_TOKENS)]
        most_calls: Annotated[int, Ge(1), Le(100_000)]
        think_scale: Annotated[float, Ge(0), Le(1e6)]

    @classmethod
    def build(
        cls, params: Params, rng: random.Random, program_id: int, client: str, item: Item | None
    ) -> Self:
        """Draw a session. Raises UsageError if none fits the parameters, DataError for the file."""
        found = _sessions(params.file, params.least_tokens, params.most_tokens)
        calls = found[rng.randrange(len(found))].calls[: params.most_calls]
        own = _Copy(f"{program_id}", params.think_scale)
        return cls(program_id, client, tuple(map(own.call, calls)))

    @classmethod
    def pauses(cls, params: Params) -> bool:
        return params.think_scale > 0


class _Copy:
    """The calls of a session with renamed content, except the parts that sessions share."""

    def __init__(self, name: str, think_scale: float) -> None:
        self._name = name
        self._scale = think_scale

    def call(self, call: Call) -> Call:
        return call._replace(
            prompt=self._prompt(call.prompt, call.shared_tokens),
            gap_s=call.gap_s * self._scale,
            think_s=call.think_s * self._scale,
            branches=tuple(
                Branch(one.delay_s * self._scale, tuple(map(self.call, one.calls)), one.until)
                for one in call.branches
            ),
        )

    def _prompt(self, prompt: Prompt, shared: int) -> Prompt:
        """Return the prompt with its first ``shared`` tokens unchanged and the rest made unique."""
        made: list[Segment] = []
        for key, length in prompt:
            same = min(shared, length)
            shared -= same
            if same:
                made.append(Segment(f"{Session.kind}/{key}", same))
            if length > same:
                made.append(Segment(f"{self._name}/{key}", length - same))
        return tuple(made)


@lru_cache(maxsize=8)
def _sessions(file: str, least_tokens: int, most_tokens: int) -> tuple[Recorded, ...]:
    trace, unused = read_trace(TraceParams(file)).trace, random.Random(0)
    programs = (
        program.item
        for client in range(len(trace.clients))
        for program in trace.programs(client, unused, 1.0)
    )
    found = tuple(one for one in programs if least_tokens <= _longest(one) <= most_tokens)
    if not found:
        raise UsageError(
            f"session.file = {file!r}: must hold a session whose longest prompt has from "
            f"{least_tokens:,} (least_tokens) to {most_tokens:,} tokens (most_tokens)"
        )
    return found


def _longest(program: Recorded) -> int:
    return max(prompt_tokens(call.prompt) for call in all_calls(program.calls))
