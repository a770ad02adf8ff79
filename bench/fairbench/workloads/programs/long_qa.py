"""Questions about one long document ([LooGLE]; [DLPM] §6.1, [Preble] Table 1)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, NamedTuple, Self

from annotated_types import Ge, Le

from fairbench.core import LLM, Demand, Prompt, Segment, prompt_tokens
from fairbench.workloads.items import Item
from fairbench.workloads.programs.base import (
    MeanGap,
    MeanTokens,
    OutputTokens,
    PartTokens,
    Program,
    Scale,
    Sigma,
    content_key,
    prompt_of,
)
from fairbench.workloads.sampling import check_mean, sample_gap, sample_input, sample_length


class Question(NamedTuple):
    """A question: its time (s after the program's arrival) and its lengths in tokens."""

    after_s: float
    question_tokens: int
    answer_tokens: int


class LongQA(Program):
    """Questions about one new document; a question does not wait for the last answer."""

    kind = "long-qa"

    @dataclass(frozen=True, slots=True)
    class Params:
        """Lengths in tokens; ``gap_mean_s`` is the mean of the exponential gaps in seconds.

        ``document_scale`` multiplies the length of every document.
        """

        questions: Annotated[int, Ge(1), Le(10_000)]
        gap_mean_s: MeanGap
        instruction_tokens: PartTokens
        document_tokens: MeanTokens
        document_sigma: Sigma
        document_scale: Scale
        question_tokens: MeanTokens
        question_sigma: Sigma
        answer_tokens: MeanTokens
        answer_sigma: Sigma
        max_new_tokens: OutputTokens

        def __post_init__(self) -> None:
            check_mean("answer_tokens", self.answer_tokens, self.answer_sigma, self.max_new_tokens)

    def __init__(
        self,
        program_id: int,
        client: str,
        root: Prompt,
        questions: tuple[Question, ...],
        max_new_tokens: int,
    ) -> None:
        self._root, self._questions, self._max_new_tokens = root, questions, max_new_tokens
        prompt = prompt_tokens(root)
        demand = Demand(
            requests=len(questions),
            input_tokens=sum(prompt + question.question_tokens for question in questions),
            output_tokens=sum(question.answer_tokens for question in questions),
        )
        super().__init__(program_id, client, demand)

    @classmethod
    def build(
        cls, params: Params, rng: random.Random, program_id: int, client: str, item: Item | None
    ) -> Self:
        """Build a program; a real item provides the document, questions and answers."""
        if item is None:
            document = sample_input(rng, params.document_tokens, params.document_sigma)
            p = params
            lengths = [
                (
                    sample_input(rng, p.question_tokens, p.question_sigma),
                    sample_length(rng, p.answer_tokens, p.answer_sigma, p.max_new_tokens),
                )
                for _ in range(params.questions)
            ]
        else:
            document = item.text_tokens
            lengths = [(q, min(a, params.max_new_tokens)) for q, a in item.exchanges]
        gaps = [0.0] + [sample_gap(rng, params.gap_mean_s) for _ in lengths[1:]]
        times = accumulate(gaps)
        questions = tuple(
            Question(after_s, q, a) for after_s, (q, a) in zip(times, lengths, strict=True)
        )
        document_key = f"{content_key(program_id, item)}/document"
        root = prompt_of(
            Segment("long-qa/instruction", params.instruction_tokens),
            Segment(document_key, max(1, round(document * params.document_scale))),
        )
        return cls(program_id, client, root, questions, params.max_new_tokens)

    @classmethod
    def pauses(cls, params: Params) -> bool:
        return params.questions > 1 and params.gap_mean_s > 0

    async def run(self, llm: LLM) -> None:
        await llm.gather([self._ask(llm, number) for number in range(len(self._questions))])

    async def _ask(self, llm: LLM, number: int) -> None:
        question = self._questions[number]
        if question.after_s > 0:
            await llm.sleep(question.after_s)
        text = Segment(f"{self.program_id}/question-{number}", question.question_tokens)
        await llm.generate(
            prompt_of(*self._root, text),
            name=f"answer-{number}",
            output_tokens=question.answer_tokens,
            max_new_tokens=self._max_new_tokens,
            depth=0,
        )
