"""A tree of thoughts, four levels deep ([SGLang bench], cited in [DLPM] §6.1)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, Self

from annotated_types import Ge, Le

from fairbench.core import LLM, Demand, Prompt, Segment, prompt_tokens
from fairbench.workloads.items import Item
from fairbench.workloads.programs import base

LEVELS = ("plan", "execute", "reflect", "answer")


class TreeOfThought(base.Program):
    """A program with four levels (plan, execute, reflect, answer), each of which forks.

    All branches of a fork send the same prompt; a temperature above 0 gives different answers.
    """

    kind = "tree-of-thought"

    @dataclass(frozen=True, slots=True)
    class Params:
        """Lengths in tokens. ``question_scale`` multiplies the length of every question.

        ``max_new_tokens`` is the output limit of each call, by default ``output_tokens``.
        """

        branches: Annotated[int, Ge(1), Le(10)]
        instruction_tokens: base.PartTokens
        question_tokens: base.MeanTokens
        question_sigma: base.Sigma
        question_scale: base.Scale
        turn_tokens: base.PartTokens
        output_tokens: base.OutputTokens
        max_new_tokens: base.OutputTokens | None = None

        def __post_init__(self) -> None:
            base.check_allowed(self.max_new_tokens, output_tokens=self.output_tokens)

    def __init__(self, program_id: int, client: str, root: Prompt, params: Params) -> None:
        self._root, self._params = root, params
        super().__init__(program_id, client, self._demand())

    @classmethod
    def build(
        cls, params: Params, rng: random.Random, program_id: int, client: str, item: Item | None
    ) -> Self:
        if item is None:
            tokens = base.sample_input(rng, params.question_tokens, params.question_sigma)
        else:
            tokens = item.text_tokens
        root = base.prompt_of(
            Segment("tot/instruction", params.instruction_tokens),
            Segment(
                f"{base.content_key(program_id, item)}/question",
                max(1, round(tokens * params.question_scale)),
            ),
        )
        return cls(program_id, client, root, params)

    def _demand(self) -> Demand:
        b, output = self._params.branches, self._params.output_tokens
        prompt = prompt_tokens(self._root)
        counts = [b ** (level + 1) for level in range(len(LEVELS))]
        inputs = [
            prompt + level * (output + self._params.turn_tokens) for level in range(len(LEVELS))
        ]
        return Demand(
            requests=sum(counts),
            input_tokens=sum(n * tokens for n, tokens in zip(counts, inputs, strict=True)),
            output_tokens=sum(counts) * output,
        )

    async def run(self, llm: LLM) -> None:
        await self._fork(llm, self._root, "", 0)

    async def _fork(self, llm: LLM, prompt: Prompt, path: str, level: int) -> None:
        await llm.gather(
            [
                self._branch(llm, prompt, f"{path}{LEVELS[level]}-{branch}", level)
                for branch in range(self._params.branches)
            ]
        )

    async def _branch(self, llm: LLM, prompt: Prompt, path: str, level: int) -> None:
        tokens = self._params.output_tokens
        thought = await llm.generate(
            prompt,
            name=path,
            output_tokens=tokens,
            max_new_tokens=self._params.max_new_tokens or tokens,
            depth=level,
        )
        if level + 1 < len(LEVELS):
            turn = Segment(f"tot/turn-{LEVELS[level + 1]}", self._params.turn_tokens)
            await self._fork(llm, base.prompt_of(*prompt, thought, turn), f"{path}/", level + 1)
