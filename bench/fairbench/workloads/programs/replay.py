"""The calls of a recorded trace, one or several: prompts, lengths and pauses as they were."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple, Self

from fairbench.core import LLM, Demand, Prompt, prompt_tokens
from fairbench.errors import UsageError
from fairbench.workloads.programs.base import Item, Program


class Call(NamedTuple):
    """One recorded call.

    The next one begins ``think_s`` after its answer and ``gap_s`` after its own beginning at the
    earliest.
    """

    prompt: Prompt
    output_tokens: int
    max_new_tokens: int
    gap_s: float = 0.0
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Recorded(Item):
    """What a trace says of one program."""

    calls: tuple[Call, ...] = ()


class Replay(Program):
    """One call after the other, each once the one before has been answered."""

    kind = "replay"

    @dataclass(frozen=True, slots=True)
    class Params:
        """``pauses``: whether time passes between the calls of one program."""

        pauses: bool

    def __init__(self, program_id: int, client: str, calls: tuple[Call, ...]) -> None:
        self._calls = calls
        demand = Demand(
            len(calls),
            sum(prompt_tokens(call.prompt) for call in calls),
            sum(call.output_tokens for call in calls),
        )
        super().__init__(program_id, client, demand)

    @classmethod
    def build(
        cls, params: Params, rng: random.Random, program_id: int, client: str, item: Item | None
    ) -> Self:
        """Nothing is drawn. Raises UsageError without a recorded program."""
        if not isinstance(item, Recorded):
            raise UsageError("program replay: needs arrivals of kind replay, which name a trace")
        return cls(program_id, client, item.calls)

    @classmethod
    def pauses(cls, params: Params) -> bool:
        return params.pauses

    async def run(self, llm: LLM) -> None:
        for depth, call in enumerate(self._calls):
            if call.gap_s > 0:
                await llm.gather([self._call(llm, depth), self._wait(llm, call.gap_s)])
            else:
                await self._call(llm, depth)
            if call.think_s > 0:
                await llm.sleep(call.think_s)

    async def _call(self, llm: LLM, depth: int) -> None:
        call = self._calls[depth]
        await llm.generate(
            call.prompt,
            name=f"call-{depth}",
            output_tokens=call.output_tokens,
            max_new_tokens=call.max_new_tokens,
            depth=depth,
        )

    async def _wait(self, llm: LLM, seconds: float) -> None:
        await llm.sleep(seconds)
