"""Attribution of a real server's step times to clients, for schedulers that charge GPU time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fairbench.core import PS_PER_S, CostModel, Request
from fairbench.hardware.gpu_time import Decoding, step_parts
from fairbench.schedulers.base import LocalScheduler


class Prompt(NamedTuple):
    """A part of a request's prompt that an engine step computed.

    ``complete`` marks the last part.
    """

    request: Request
    cached_tokens: int
    new_tokens: int
    complete: bool


class Decode(NamedTuple):
    """A request that decoded in a step."""

    request: Request
    context_tokens: int


class StepTimes:
    """Reports step times to a scheduler with ``times_steps``. Overlapping steps count once.

    How long one took the server's clock says; how that divides, ``costs``, a model that is fitted
    to its own steps. As long as little has been seen all bear the same part.
    """

    def __init__(self, scheduler: LocalScheduler, costs: CostModel) -> None:
        self._scheduler = scheduler
        self._costs = costs
        self._until_s = 0.0  # what is charged already

    def step(
        self,
        started_s: float,
        ended_s: float,
        prompts: Sequence[Prompt] = (),
        decoding: Sequence[Decode] = (),
    ) -> None:
        """Account a finished step.

        Args:
            started_s: Start of the step, in seconds.
            ended_s: End of the step, in seconds.
            prompts: Parts of prompts that the step computed.
            decoding: Requests that decoded in the step, with their context.
        """
        started_s, self._until_s = max(started_s, self._until_s), max(ended_s, self._until_s)
        took_ps = max(0, round((ended_s - started_s) * PS_PER_S))
        clients: dict[str, Decoding] = {}
        for request, tokens in decoding:
            number, context = clients.get(request.client, (0, 0))
            clients[request.client] = Decoding(number + 1, context + tokens)
        chunks = [(one.cached_tokens, one.new_tokens) for one in prompts]
        parts = step_parts(self._costs, took_ps, chunks, clients)
        for one, gpu_ps in zip(prompts, parts.chunks, strict=True):
            self._scheduler.on_prompt_time(one.request, gpu_ps, one.complete)
        for client, gpu_ps in parts.clients.items():
            self._scheduler.on_gpu_time(client, gpu_ps)
