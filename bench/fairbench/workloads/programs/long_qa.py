"""Questions about one long document ([LooGLE]; [DLPM] §6.1, [Preble] Table 1)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, NamedTuple, Self

from annotated_types import Ge, Le

from fairbench.core import LLM, Demand, Prompt, Segment, prompt_tokens
from fairbench.workloads.items import Item
from fairbench.workloads.programs import base


class Question(NamedTuple):
    """A question that is asked ``after_s`` seconds after the program's arrival."""

    after_s: float
    question_tokens: int
    answer_tokens: int


class LongQA(base.Program):
    """Questions about one new document; a question does not wait for the previous answer."""

    kind = "long-qa"

    @dataclass(frozen=True, slots=True)
    class Params:
        """Text lengths are in tokens; gaps between questions are exponential (mean ``gap_mean_s``).

        ``document_scale`` multiplies the length of every document.
        """

        questions: Annotated[int, Ge(1), Le(10_000)]
        gap_mean_s: base.MeanGap
        instruction_tokens: base.PartTokens
        document_tokens: base.MeanTokens
        document_sigma: base.Sigma
        document_scale: base.Scale
        question_tokens: base.MeanTokens
        question_sigma: base.Sigma
        answer_tokens: base.MeanTokens
        answer_sigma: base.Sigma
        max_new_tokens: base.OutputTokens

        def __post_init__(self) -> None:
            base.check_mean(self, "answer")

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
        """Build a program; ``item`` gives the lengths of the document, questions and answers."""
        if item is None:
            document = base.sample_input(rng, params.document_tokens, params.document_sigma)
            lengths = base.sample_exchanges(rng, params, "question", "answer", params.questions)
        else:
            document = item.text_tokens
            lengths = [(q, min(a, params.max_new_tokens)) for q, a in item.exchanges]
        gaps = [0.0] + [base.sample_gap(rng, params.gap_mean_s) for _ in lengths[1:]]
        times = accumulate(gaps)
        questions = tuple(
            Question(after_s, q, a) for after_s, (q, a) in zip(times, lengths, strict=True)
        )
        document_key = f"{base.content_key(program_id, item)}/document"
        root = base.prompt_of(
            Segment("long-qa/instruction", params.instruction_tokens),
            Segment(document_key, max(1, round(document * params.document_scale))),
        )
        return cls(program_id, client, root, questions, params.max_new_tokens)

    @classmethod
    def pauses(cls, params: Params) -> bool:
        return params.questions > 1 and params.gap_mean_s > 0

    async def run(self, llm: LLM) -> None:
        await llm.gather(
            [self._ask_question(llm, number) for number in range(len(self._questions))]
        )

    async def _ask_question(self, llm: LLM, number: int) -> None:
        question = self._questions[number]
        if question.after_s > 0:
            await llm.sleep(question.after_s)
        text = Segment(f"{self.program_id}/question-{number}", question.question_tokens)
        await llm.generate(
            base.prompt_of(*self._root, text),
            name=f"answer-{number}",
            output_tokens=question.answer_tokens,
            max_new_tokens=self._max_new_tokens,
            depth=0,
        )
