"""A conversation: each prompt adds a user message to the history ([DLPM] §6.1).

``Conversation`` is also the base class of agents.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple, Self

from annotated_types import Ge, Le

from fairbench.core import LLM, Demand, Prompt, Segment, new_tuple, prompt_tokens
from fairbench.workloads.items import Item
from fairbench.workloads.programs import base


class Turn(NamedTuple):
    """A call of a conversation: the pause before the call in seconds, and lengths in tokens.

    ``added_tokens`` is the length of the new part of the prompt.
    """

    pause_s: float
    added_tokens: int
    output_tokens: int


class Conversation(base.Program):
    """A sequence of calls; each prompt is the previous prompt, the previous output and a new part.

    ``root`` is the beginning of the first prompt. Subclasses define the words ``part`` and
    ``call``, which occur in the names of prompt parts and of calls.
    """

    part: ClassVar[str]
    call: ClassVar[str]

    def __init__(
        self,
        program_id: int,
        client: str,
        content: str,
        root: Prompt,
        turns: tuple[Turn, ...],
        max_new_tokens: int,
    ) -> None:
        self._content, self._root = content, root
        self._turns, self._max_new_tokens = turns, max_new_tokens
        tokens, inputs, outputs = prompt_tokens(root), 0, 0
        for _, added, said in turns:
            tokens += added
            inputs, outputs = inputs + tokens, outputs + said
            tokens += said
        super().__init__(program_id, client, Demand(len(turns), inputs, outputs))

    @staticmethod
    def paced(
        rng: random.Random, lengths: Sequence[tuple[int, int]], mean_s: float
    ) -> tuple[Turn, ...]:
        """Return turns of the given lengths, with random pauses of mean ``mean_s`` seconds."""
        pauses = [0.0] + [base.sample_gap(rng, mean_s) for _ in lengths[1:]]
        pairs = zip(pauses, lengths, strict=True)
        return tuple([new_tuple(Turn, (pause, *pair)) for pause, pair in pairs])

    async def run(self, llm: LLM) -> None:
        prompt = self._root
        for number, turn in enumerate(self._turns):
            if turn.pause_s > 0:
                await llm.sleep(turn.pause_s)
            if turn.added_tokens:
                name = f"{self._content}/{self.part}-{number}"
                prompt = (*prompt, new_tuple(Segment, (name, turn.added_tokens)))
            output = await llm.generate(
                prompt,
                name=f"{self.call}-{number}",
                output_tokens=turn.output_tokens,
                max_new_tokens=self._max_new_tokens,
                depth=number,
            )
            if output.length:
                prompt = (*prompt, output)


class Chat(Conversation):
    """A conversation of several turns, between which the user reads and thinks."""

    kind, part, call = "chat", "user", "turn"

    @dataclass(frozen=True, slots=True)
    class Params:
        """Text lengths are in tokens; turn counts are uniform in [``turns_min``, ``turns_max``].

        ``think_mean_s`` is the mean think time in seconds; think times are exponential.
        """

        turns_min: Annotated[int, Ge(1), Le(1000)]
        turns_max: Annotated[int, Ge(1), Le(1000)]
        think_mean_s: base.MeanGap
        user_tokens: base.MeanTokens
        user_sigma: base.Sigma
        output_tokens: base.MeanTokens
        output_sigma: base.Sigma
        max_new_tokens: base.OutputTokens

        def __post_init__(self) -> None:
            base.check_range(self, "turns")
            base.check_mean(self, "output")

    @classmethod
    def build(
        cls, params: Params, rng: random.Random, program_id: int, client: str, item: Item | None
    ) -> Self:
        """Build a program; ``item`` gives the lengths of messages and replies.

        Replies are cut at ``max_new_tokens``.
        """
        if item is None:
            count = rng.randint(params.turns_min, params.turns_max)
            lengths = base.sample_exchanges(rng, params, "user", "output", count)
        else:
            lengths = [(user, min(bot, params.max_new_tokens)) for user, bot in item.exchanges]
        turns = cls.paced(rng, lengths, params.think_mean_s)
        content = base.content_key(program_id, item)
        return cls(program_id, client, content, (), turns, params.max_new_tokens)

    @classmethod
    def pauses(cls, params: Params) -> bool:
        return params.turns_max > 1 and params.think_mean_s > 0
