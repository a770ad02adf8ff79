"""A single request with constant, uniform ([VTC] §5.1) or real lengths."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, Self

from annotated_types import Ge, Le

from fairbench.core import LLM, Demand, Segment
from fairbench.workloads.items import Item
from fairbench.workloads.programs.base import OutputTokens, Program, check_range, content_key

InputTokens = Annotated[int, Ge(1), Le(10**7)]


class Single(Program):
    """A request that shares no prefix and whose output limit is the true output length."""

    kind = "single"

    @dataclass(frozen=True, slots=True)
    class Params:
        """Inclusive bounds of input and output lengths (tokens), which are drawn uniformly."""

        input_min: InputTokens
        input_max: InputTokens
        output_min: OutputTokens
        output_max: OutputTokens

        def __post_init__(self) -> None:
            check_range(self, "input")
            check_range(self, "output")

    def __init__(self, program_id: int, client: str, prompt: Segment, output_tokens: int) -> None:
        self._prompt = prompt
        self._output_tokens = output_tokens
        super().__init__(program_id, client, Demand(1, prompt.length, output_tokens))

    @classmethod
    def build(
        cls, params: Params, rng: random.Random, program_id: int, client: str, item: Item | None
    ) -> Self:
        """Build a program; ``item`` gives the lengths of the prompt and, if known, the answer."""
        if item is None:
            prompt = rng.randint(params.input_min, params.input_max)
        else:
            prompt = max(1, item.text_tokens)
        if item is not None and item.exchanges:
            output = item.exchanges[0][1]
        else:
            output = rng.randint(params.output_min, params.output_max)
        segment = Segment(f"{content_key(program_id, item)}/prompt", prompt)
        return cls(program_id, client, segment, output)

    @classmethod
    def has_turns(cls, params: Params) -> bool:
        return False

    async def run(self, llm: LLM) -> None:
        await llm.generate(
            (self._prompt,),
            name="answer",
            output_tokens=self._output_tokens,
            max_new_tokens=self._output_tokens,
            depth=0,
        )
