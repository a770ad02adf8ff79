"""Several samples of an answer, requested at once with the same prompt ([Preble] §A.3)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, Self

from annotated_types import Ge, Le

from fairbench.core import LLM, Demand, Prompt, Segment, prompt_tokens
from fairbench.workloads.items import Item
from fairbench.workloads.programs import base


class Samples(base.Program):
    """A program that sends one prompt several times at once, with outputs of different lengths."""

    kind = "samples"

    @dataclass(frozen=True, slots=True)
    class Params:
        """Lengths in tokens.

        All programs share the first ``examples_tokens`` tokens of their prompts.
        """

        samples: Annotated[int, Ge(1), Le(1000)]
        examples_tokens: base.PartTokens
        problem_tokens: base.MeanTokens
        problem_sigma: base.Sigma
        output_tokens: base.MeanTokens
        output_sigma: base.Sigma
        max_new_tokens: base.OutputTokens

        def __post_init__(self) -> None:
            base.check_mean(self, "output")

    def __init__(
        self,
        program_id: int,
        client: str,
        prompt: Prompt,
        outputs: tuple[int, ...],
        max_new_tokens: int,
    ) -> None:
        self._prompt, self._outputs, self._max_new_tokens = prompt, outputs, max_new_tokens
        demand = Demand(len(outputs), len(outputs) * prompt_tokens(prompt), sum(outputs))
        super().__init__(program_id, client, demand)

    @classmethod
    def build(
        cls, params: Params, rng: random.Random, program_id: int, client: str, item: Item | None
    ) -> Self:
        """Build a program; ``item`` gives the problem's length, and output lengths are random."""
        if item is None:
            problem = base.sample_input(rng, params.problem_tokens, params.problem_sigma)
        else:
            problem = max(1, item.text_tokens)
        outputs = tuple(
            base.sample_length(
                rng, params.output_tokens, params.output_sigma, params.max_new_tokens
            )
            for _ in range(params.samples)
        )
        prompt = base.prompt_of(
            Segment("samples/examples", params.examples_tokens),
            Segment(f"{base.content_key(program_id, item)}/problem", problem),
        )
        return cls(program_id, client, prompt, outputs, params.max_new_tokens)

    async def run(self, llm: LLM) -> None:
        await llm.gather([self._sample(llm, number) for number in range(len(self._outputs))])

    async def _sample(self, llm: LLM, number: int) -> None:
        await llm.generate(
            self._prompt,
            name=f"sample-{number}",
            output_tokens=self._outputs[number],
            max_new_tokens=self._max_new_tokens,
            depth=0,
        )
