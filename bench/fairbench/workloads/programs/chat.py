"""A conversation: each prompt is the history and a new user message ([DLPM] §6.1)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Self

from annotated_types import Ge, Le

from fairbench.core import LLM, Prompt, Segment, new_tuple
from fairbench.workloads.items import Item
from fairbench.workloads.programs import base


class Turn(NamedTuple):
    """A turn of a conversation: seconds of think time before the turn, and lengths in tokens."""

    think_s: float
    user_tokens: int
    output_tokens: int


class Chat(base.Program):
    """A conversation of several turns; between turns, the user reads and thinks."""

    kind = "chat"

    @dataclass(frozen=True, slots=True)
    class Params:
        """Lengths in tokens; the number of turns is uniform from ``turns_min`` to ``turns_max``.

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

    def __init__(
        self,
        program_id: int,
        client: str,
        content: str,
        turns: tuple[Turn, ...],
        max_new_tokens: int,
    ) -> None:
        self._content, self._turns, self._max_new_tokens = content, turns, max_new_tokens
        exchanges = [(user, said) for _, user, said in turns]
        super().__init__(program_id, client, base.growing_demand(0, exchanges))

    @classmethod
    def build(
        cls, params: Params, rng: random.Random, program_id: int, client: str, item: Item | None
    ) -> Self:
        """Build a program; lengths of messages and replies come from ``item``.

        Replies are cut at ``max_new_tokens``.
        """
        if item is None:
            count = rng.randint(params.turns_min, params.turns_max)
            lengths = base.sample_exchanges(rng, params, "user", "output", count)
        else:
            lengths = [(user, min(bot, params.max_new_tokens)) for user, bot in item.exchanges]
        thinks = [0.0] + [base.sample_gap(rng, params.think_mean_s) for _ in lengths[1:]]
        pairs = zip(thinks, lengths, strict=True)
        turns = tuple([new_tuple(Turn, (think, *pair)) for think, pair in pairs])
        content = base.content_key(program_id, item)
        return cls(program_id, client, content, turns, params.max_new_tokens)

    @classmethod
    def pauses(cls, params: Params) -> bool:
        return params.turns_max > 1 and params.think_mean_s > 0

    async def run(self, llm: LLM) -> None:
        history: Prompt = ()
        for number, turn in enumerate(self._turns):
            if turn.think_s > 0:
                await llm.sleep(turn.think_s)
            message = new_tuple(Segment, (f"{self._content}/user-{number}", turn.user_tokens))
            prompt = (*history, message) if turn.user_tokens else history
            reply = await llm.generate(
                prompt,
                name=f"turn-{number}",
                output_tokens=turn.output_tokens,
                max_new_tokens=self._max_new_tokens,
                depth=number,
            )
            history = (*prompt, reply) if reply.length else prompt
