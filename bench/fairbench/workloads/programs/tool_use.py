"""Programs that ask a question after a tool's description ([Preble] §A.1)."""

from __future__ import annotations

import random
from bisect import bisect
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import exp
from statistics import NormalDist
from typing import Annotated, NamedTuple, Self

from annotated_types import Ge, Le

from fairbench.core import LLM, Demand, Prompt, Segment, prompt_tokens
from fairbench.workloads.items import Item
from fairbench.workloads.programs import base

GOLDEN = 0.6180339887498949  # Multiples of this ratio, modulo 1, are spread evenly over (0, 1).


class _Tools(NamedTuple):
    """Tools, most popular first: cumulative shares of programs, and lengths of descriptions."""

    shares: tuple[float, ...]
    lengths: tuple[int, ...]


class ToolUse(base.Program):
    """A call with the common system prompt, the description of one tool, and a question.

    A program's tool is drawn by Zipf's law. Tool descriptions do not depend on the seed, and all
    clients share the descriptions unless ``private`` is true.
    """

    kind = "tool-use"

    @dataclass(frozen=True, slots=True)
    class Params:
        """Lengths in tokens. ``popularity`` is the exponent of Zipf's law over ``tools`` tools.

        ``tool_tokens`` is the mean description length over programs, so popular tools count more.
        If ``private`` is true, two clients never share a tool description.
        """

        tools: Annotated[int, Ge(1), Le(100_000)]
        popularity: Annotated[float, Ge(0), Le(10)]
        system_tokens: base.PartTokens
        tool_tokens: base.MeanTokens
        tool_sigma: base.Sigma
        question_tokens: base.MeanTokens
        question_sigma: base.Sigma
        output_tokens: base.MeanTokens
        output_sigma: base.Sigma
        max_new_tokens: base.OutputTokens
        private: bool = False

        def __post_init__(self) -> None:
            base.check_mean(self, "output")

    def __init__(
        self, program_id: int, client: str, prompt: Prompt, output: int, max_new_tokens: int
    ) -> None:
        self._prompt, self._output, self._max_new_tokens = prompt, output, max_new_tokens
        super().__init__(program_id, client, Demand(1, prompt_tokens(prompt), output))

    @classmethod
    def pick(cls, params: Params, rng: random.Random, number: int) -> int:
        return bisect(_tools(params).shares, rng.random())

    @classmethod
    def build(
        cls, params: Params, rng: random.Random, program_id: int, client: str, item: Item | None
    ) -> Self:
        """Build a program; ``item`` gives the lengths of its tool description and question."""
        if item is None:
            rank = cls.pick(params, rng, 0)
            name, length = f"tool-use/tool-{rank}", _tools(params).lengths[rank]
            question = base.sample_input(rng, params.question_tokens, params.question_sigma)
            output = base.sample_length(
                rng, params.output_tokens, params.output_sigma, params.max_new_tokens
            )
        else:
            name, length = f"{item.key}/tool", max(1, item.text_tokens)
            question, output = rng.choice(item.exchanges or ((1, 1),))
        prompt = base.prompt_of(
            Segment("tool-use/system", params.system_tokens),
            Segment(f"{client}/{name}" if params.private else name, length),
            Segment(f"{program_id}/question", max(1, question)),
        )
        output = min(max(1, output), params.max_new_tokens)
        return cls(program_id, client, prompt, output, params.max_new_tokens)

    async def run(self, llm: LLM) -> None:
        await llm.generate(
            self._prompt,
            name="answer",
            output_tokens=self._output,
            max_new_tokens=self._max_new_tokens,
            depth=0,
        )


@lru_cache(maxsize=32)
def _tools(params: ToolUse.Params) -> _Tools:
    """Return a workload's tools; their token counts are lognormal and do not depend on the seed."""
    weights = [(rank + 1) ** -params.popularity for rank in range(params.tools)]
    total = sum(weights)
    shares = [weight / total for weight in weights]
    normal = NormalDist(0.0, params.tool_sigma or 1.0)
    spread = params.tool_sigma > 0
    raw = [
        exp(normal.inv_cdf((0.5 + rank * GOLDEN) % 1)) if spread else 1.0
        for rank in range(params.tools)
    ]
    scale = params.tool_tokens / sum(map(float.__mul__, shares, raw))
    lengths = tuple(max(1, round(length * scale)) for length in raw)
    # Leave out the last cumulative share, because rounding may make it less than 1.
    return _Tools(tuple(accumulate(shares))[:-1], lengths)
