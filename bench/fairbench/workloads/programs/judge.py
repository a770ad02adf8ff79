"""LLM as a judge: branch, solve, merge ([SGLang bench], cited in [DLPM] §6.1)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, Self

from annotated_types import Ge, Le

from fairbench.core import LLM, Demand, Prompt, Segment, prompt_tokens
from fairbench.workloads.items import Item
from fairbench.workloads.programs.base import (
    MeanTokens,
    OutputTokens,
    PartTokens,
    Program,
    Sigma,
    content_key,
    prompt_of,
)
from fairbench.workloads.sampling import check_allowed, sample_input


class Judge(Program):
    """A judge: one article, parallel judgements of its dimensions, a merge and a score.

    A program makes ``dimensions`` + 2 requests, as in the authors' logs.
    """

    kind = "judge"

    @dataclass(frozen=True, slots=True)
    class Params:
        """Lengths in tokens. ``extra_tokens`` of fresh text precede each article ([DLPM] Table 3).

        ``dimension_tokens``, ``merge_tokens`` and ``score_tokens`` are the instructions of the
        three steps. ``max_new_tokens`` is the output limit of each call, by default its true
        length.
        """

        dimensions: Annotated[int, Ge(1), Le(256)]
        system_tokens: PartTokens
        extra_tokens: PartTokens
        article_tokens: MeanTokens
        article_sigma: Sigma
        dimension_tokens: PartTokens
        judgement_tokens: OutputTokens
        merge_tokens: PartTokens
        merge_output_tokens: OutputTokens
        score_tokens: PartTokens
        score_output_tokens: OutputTokens
        max_new_tokens: OutputTokens | None = None

        def __post_init__(self) -> None:
            check_allowed(
                self.max_new_tokens,
                judgement_tokens=self.judgement_tokens,
                merge_output_tokens=self.merge_output_tokens,
                score_output_tokens=self.score_output_tokens,
            )

    def __init__(self, program_id: int, client: str, root: Prompt, params: Params) -> None:
        self._root, self._params = root, params
        super().__init__(program_id, client, self._demand())

    @classmethod
    def build(
        cls, params: Params, rng: random.Random, program_id: int, client: str, item: Item | None
    ) -> Self:
        if item is None:
            tokens = sample_input(rng, params.article_tokens, params.article_sigma)
        else:
            tokens = item.text_tokens
        own = content_key(program_id, item)
        root = prompt_of(
            Segment("judge/system", params.system_tokens),
            Segment(f"{own}/extra", params.extra_tokens),
            Segment(f"{own}/article", tokens),
        )
        return cls(program_id, client, root, params)

    def _demand(self) -> Demand:
        p = self._params
        prompt = prompt_tokens(self._root)
        judgements = p.dimensions * p.judgement_tokens
        merge = prompt + judgements + p.merge_tokens
        score = merge + p.merge_output_tokens + p.score_tokens
        return Demand(
            requests=p.dimensions + 2,
            input_tokens=p.dimensions * (prompt + p.dimension_tokens) + merge + score,
            output_tokens=judgements + p.merge_output_tokens + p.score_output_tokens,
        )

    async def run(self, llm: LLM) -> None:
        p = self._params
        judgements = await llm.gather([self._judge(llm, number) for number in range(p.dimensions)])
        merge_prompt = prompt_of(
            *self._root, *judgements, Segment("judge/merge-instruction", p.merge_tokens)
        )
        merged = await self._call(llm, merge_prompt, "merge", p.merge_output_tokens, 1)
        score_prompt = prompt_of(
            *merge_prompt, merged, Segment("judge/score-instruction", p.score_tokens)
        )
        await self._call(llm, score_prompt, "score", p.score_output_tokens, 2)

    async def _judge(self, llm: LLM, number: int) -> Segment:
        dimension = Segment(f"judge/dimension-{number}", self._params.dimension_tokens)
        prompt = prompt_of(*self._root, dimension)
        return await self._call(
            llm, prompt, f"judgement-{number}", self._params.judgement_tokens, 0
        )

    async def _call(self, llm: LLM, prompt: Prompt, name: str, tokens: int, depth: int) -> Segment:
        return await llm.generate(
            prompt,
            name=name,
            output_tokens=tokens,
            max_new_tokens=self._params.max_new_tokens or tokens,
            depth=depth,
        )
