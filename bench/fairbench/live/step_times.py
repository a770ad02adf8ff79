"""Step times of a real server: fitted while it serves, and attributed to clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fairbench.core import PS_PER_S, CostModel, Request
from fairbench.hardware.gpu_time import Decoding, step_parts
from fairbench.schedulers.base import LocalScheduler

FORGET = 0.999  # weight of the observation one iteration earlier
FEW = 8  # number of iterations below which nothing is fitted


class _Fit:
    """A recent least-squares fit of seconds to a constant and two counts; never below 0 seconds."""

    def __init__(self) -> None:
        self._products = [[0.0] * 3 for _ in range(3)]
        self._targets = [0.0] * 3
        self._seen = 0
        self._found: list[float] | None = None  # over all observations so far

    def observe(self, first: float, second: float, seconds: float) -> None:
        row = (1.0, first, second)
        for products, one in zip(self._products, row, strict=True):
            products[:] = [FORGET * a + one * b for a, b in zip(products, row, strict=True)]
        self._targets = [FORGET * a + b * seconds for a, b in zip(self._targets, row, strict=True)]
        self._seen += 1
        self._found = None

    def predict(self, first: float, second: float) -> float:
        """Return the predicted seconds, or 0 after too few observations."""
        if self._seen < FEW:
            return 0.0
        if self._found is None:
            self._found = self._solved()
        constant, each_first, each_second = self._found
        return max(0.0, constant + each_first * first + each_second * second)

    def _solved(self) -> list[float]:
        import numpy as np  # every engine has numpy, but most schedulers need no fit

        products = np.array(self._products)
        units = np.sqrt(np.maximum(products.diagonal(), 1e-300))
        scaled = products / np.outer(units, units)
        found = np.linalg.lstsq(scaled, np.array(self._targets) / units, rcond=1e-10)[0]
        return [float(one) for one in found / units]


class FittedCosts:
    """A ``CostModel`` that is fitted to measured iterations.

    A prefill is linear in its tokens and in the context that they attend to,

    a decode step in its requests and in their context, as in the simulator's timing profiles.
    """

    def __init__(self) -> None:
        self._prefill, self._decode = _Fit(), _Fit()

    def observe_prefill(self, chunks: Iterable[tuple[int, int]], seconds: float) -> None:
        """Add a prefill iteration of ``seconds`` with each prompt's (cached, new) tokens."""
        pairs = list(chunks)
        self._prefill.observe(
            sum(new for _, new in pairs), sum(_attended(*pair) for pair in pairs), seconds
        )

    def observe_decode(self, requests: int, context_tokens: int, seconds: float) -> None:
        self._decode.observe(requests, context_tokens, seconds)

    def prefill_s(self, cached_tokens: int, new_tokens: int) -> float:
        return self._prefill.predict(new_tokens, _attended(cached_tokens, new_tokens))

    def decode_step_s(self, requests: int, context_tokens: int) -> float:
        return self._decode.predict(requests, context_tokens)


def _attended(cached_tokens: int, new_tokens: int) -> float:
    """Return the number of token pairs in attention."""
    return new_tokens * (cached_tokens + (new_tokens + 1) / 2)


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

    The server's clock gives the duration of a step; ``costs``, a model fitted to the server's own
    steps, divides it. Until enough steps have been measured, all requests of a step bear equal
    parts.
    """

    def __init__(self, scheduler: LocalScheduler, costs: CostModel) -> None:
        self._scheduler = scheduler
        self._costs = costs
        self._until_s = 0.0  # the time so far is charged

    def step(
        self,
        started_s: float,
        ended_s: float,
        prompts: Sequence[Prompt] = (),
        decoding: Sequence[Decode] = (),
    ) -> None:
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
