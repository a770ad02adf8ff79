"""An agent in an environment, which acts and observes repeatedly ([Preble] §A.2)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Self

from annotated_types import Ge, Le

from fairbench.core import LLM, Prompt, Segment, prompt_tokens
from fairbench.workloads.items import Item
from fairbench.workloads.programs.base import (
    MeanGap,
    MeanTokens,
    OutputTokens,
    PartTokens,
    Program,
    Sigma,
    check_range,
    content_key,
    growing_demand,
    prompt_of,
)
from fairbench.workloads.sampling import check_mean, sample_gap, sample_input, sample_length


class Step(NamedTuple):
    """The observation before a call, its duration (s), and the call's output."""

    wait_s: float
    observation_tokens: int
    output_tokens: int


class Agent(Program):
    """A loop of calls of unknown length; each prompt extends the previous one.

    Before the first call there is no observation.
    """

    kind = "agent"

    @dataclass(frozen=True, slots=True)
    class Params:
        """Lengths in tokens; the number of steps is uniform from ``steps_min`` to ``steps_max``.

        ``step_gap_s`` is the mean of the exponential time in seconds that the environment takes.
        """

        steps_min: Annotated[int, Ge(1), Le(1000)]
        steps_max: Annotated[int, Ge(1), Le(1000)]
        step_gap_s: MeanGap
        system_tokens: PartTokens
        instruction_tokens: MeanTokens
        instruction_sigma: Sigma
        observation_tokens: MeanTokens
        observation_sigma: Sigma
        output_tokens: MeanTokens
        output_sigma: Sigma
        max_new_tokens: OutputTokens

        def __post_init__(self) -> None:
            check_range(self, "steps")
            check_mean("output_tokens", self.output_tokens, self.output_sigma, self.max_new_tokens)

    def __init__(
        self,
        program_id: int,
        client: str,
        content: str,
        root: Prompt,
        steps: tuple[Step, ...],
        max_new_tokens: int,
    ) -> None:
        self._content, self._root, self._steps = content, root, steps
        self._max_new_tokens = max_new_tokens
        exchanges = ((step.observation_tokens, step.output_tokens) for step in steps)
        super().__init__(program_id, client, growing_demand(prompt_tokens(root), exchanges))

    @classmethod
    def build(
        cls, params: Params, rng: random.Random, program_id: int, client: str, item: Item | None
    ) -> Self:
        """Build a program.

        An item of a real dataset provides instruction, observations and outputs.
        """
        if item is None:
            instruction = sample_input(rng, params.instruction_tokens, params.instruction_sigma)
            count = rng.randint(params.steps_min, params.steps_max)
            p = params
            lengths = [
                (
                    sample_input(rng, p.observation_tokens, p.observation_sigma),
                    sample_length(rng, p.output_tokens, p.output_sigma, p.max_new_tokens),
                )
                for _ in range(count)
            ]
            lengths[0] = (0, lengths[0][1])
        else:
            instruction = max(1, item.text_tokens)
            lengths = [
                (seen, min(max(1, out), params.max_new_tokens)) for seen, out in item.exchanges
            ]
        waits = [0.0] + [sample_gap(rng, params.step_gap_s) for _ in lengths[1:]]
        steps = tuple(Step(wait, *pair) for wait, pair in zip(waits, lengths, strict=True))
        content = content_key(program_id, item)
        root = prompt_of(
            Segment("agent/system", params.system_tokens),
            Segment((item and item.text_key) or f"{content}/instruction", instruction),
        )
        return cls(program_id, client, content, root, steps, params.max_new_tokens)

    @classmethod
    def pauses(cls, params: Params) -> bool:
        return params.steps_max > 1 and params.step_gap_s > 0

    async def run(self, llm: LLM) -> None:
        prompt = self._root
        for number, step in enumerate(self._steps):
            if step.wait_s > 0:
                await llm.sleep(step.wait_s)
            seen = Segment(f"{self._content}/observation-{number}", step.observation_tokens)
            prompt += prompt_of(seen)
            acted = await llm.generate(
                prompt,
                name=f"step-{number}",
                output_tokens=step.output_tokens,
                max_new_tokens=self._max_new_tokens,
                depth=number,
            )
            prompt += prompt_of(acted)
