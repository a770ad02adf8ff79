"""An agent that repeatedly acts in an environment and observes the result ([Preble] §A.2)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, Self

from annotated_types import Ge, Le

from fairbench.core import Segment
from fairbench.workloads.items import Item
from fairbench.workloads.programs import base
from fairbench.workloads.programs.chat import Conversation


class Agent(Conversation):
    """A loop of calls; each prompt is the previous prompt, an output and an observation."""

    kind, part, call = "agent", "observation", "step"

    @dataclass(frozen=True, slots=True)
    class Params:
        """Text lengths are in tokens; step counts are uniform in [``steps_min``, ``steps_max``].

        The time until an observation is exponentially distributed with a mean of ``step_gap_s``
        seconds.
        """

        steps_min: Annotated[int, Ge(1), Le(1000)]
        steps_max: Annotated[int, Ge(1), Le(1000)]
        step_gap_s: base.MeanGap
        system_tokens: base.PartTokens
        instruction_tokens: base.MeanTokens
        instruction_sigma: base.Sigma
        observation_tokens: base.MeanTokens
        observation_sigma: base.Sigma
        output_tokens: base.MeanTokens
        output_sigma: base.Sigma
        max_new_tokens: base.OutputTokens

        def __post_init__(self) -> None:
            base.check_range(self, "steps")
            base.check_mean(self, "output")

    @classmethod
    def build(
        cls, params: Params, rng: random.Random, program_id: int, client: str, item: Item | None
    ) -> Self:
        """Build a program; ``item`` gives the lengths of instruction, observations and outputs."""
        if item is None:
            instruction = base.sample_input(
                rng, params.instruction_tokens, params.instruction_sigma
            )
            count = rng.randint(params.steps_min, params.steps_max)
            lengths = base.sample_exchanges(rng, params, "observation", "output", count)
            lengths[0] = (0, lengths[0][1])
        else:
            instruction = max(1, item.text_tokens)
            lengths = [
                (seen, min(max(1, out), params.max_new_tokens)) for seen, out in item.exchanges
            ]
        steps = cls.paced(rng, lengths, params.step_gap_s)
        content = base.content_key(program_id, item)
        root = base.prompt_of(
            Segment("agent/system", params.system_tokens),
            Segment((item and item.text_key) or f"{content}/instruction", instruction),
        )
        return cls(program_id, client, content, root, steps, params.max_new_tokens)

    @classmethod
    def pauses(cls, params: Params) -> bool:
        return params.steps_max > 1 and params.step_gap_s > 0
