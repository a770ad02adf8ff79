"""Programs in which an LLM judges articles: branch, solve, merge ([SGLang bench], [DLPM] §6.1)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, Self

from annotated_types import Ge, Le

from fairbench.core import LLM, Demand, Prompt, Segment, prompt_tokens
from fairbench.workloads.items import Item
from fairbench.workloads.programs import base


class Judge(base.Program):
    """A judgement of one article: parallel judgements by dimension, a merge, and a score.

    A program makes ``dimensions`` + 2 requests, as in the logs of the authors of [DLPM].
    """

    kind = "judge"

    @dataclass(frozen=True, slots=True)
    class Params:
        """Text lengths are in tokens; ``extra_tokens`` tokens precede an article ([DLPM] Table 3).

        ``dimension_tokens``, ``merge_tokens`` and ``score_tokens`` are the lengths of the
        instructions for judging a dimension, merging and scoring. ``max_new_tokens`` is the output
        limit of each call; the default is the call's true output length.
        """

        dimensions: Annotated[int, Ge(1), Le(256)]
        system_tokens: base.PartTokens
        extra_tokens: base.PartTokens
        article_tokens: base.MeanTokens
        article_sigma: base.Sigma
        dimension_tokens: base.PartTokens
        judgement_tokens: base.OutputTokens
        merge_tokens: base.PartTokens
        merge_output_tokens: base.OutputTokens
        score_tokens: base.PartTokens
        score_output_tokens: base.OutputTokens
        max_new_tokens: base.OutputTokens | None = None

        def __post_init__(self) -> None:
            base.check_allowed(
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
            tokens = base.sample_input(rng, params.article_tokens, params.article_sigma)
        else:
            tokens = item.text_tokens
        own = base.content_key(program_id, item)
        root = base.prompt_of(
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
        prompts = [
            base.prompt_of(*self._root, Segment(f"judge/dimension-{number}", p.dimension_tokens))
            for number in range(p.dimensions)
        ]
        judgements = await llm.gather(
            self._generate_part(llm, prompt, f"judgement-{number}", p.judgement_tokens, 0)
            for number, prompt in enumerate(prompts)
        )
        merge_prompt = base.prompt_of(
            *self._root, *judgements, Segment("judge/merge-instruction", p.merge_tokens)
        )
        merged = await self._generate_part(llm, merge_prompt, "merge", p.merge_output_tokens, 1)
        score_prompt = base.prompt_of(
            *merge_prompt, merged, Segment("judge/score-instruction", p.score_tokens)
        )
        await self._generate_part(llm, score_prompt, "score", p.score_output_tokens, 2)

    async def _generate_part(
        self, llm: LLM, prompt: Prompt, name: str, tokens: int, depth: int
    ) -> Segment:
        return await llm.generate(
            prompt,
            name=name,
            output_tokens=tokens,
            max_new_tokens=self._params.max_new_tokens or tokens,
            depth=depth,
        )
