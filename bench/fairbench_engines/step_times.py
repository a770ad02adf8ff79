"""A cost model fitted to an engine's step times, and the division of GPU time among clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fairbench.core import PS_PER_S, CostModel, Request
from fairbench.hardware.gpu_time import Decoding, step_parts
from fairbench.schedulers.base import LocalScheduler

# factor by which the weights of all earlier observations shrink at a new observation
FORGET = 0.999
FEW = 8  # minimum number of observations before the first prediction of a step time


class _Fit:
    """A weighted least-squares fit of step times as a linear function of several counts."""

    def __init__(self, counts: int) -> None:
        self._products = [[0.0] * (counts + 1) for _ in range(counts + 1)]
        self._targets = [0.0] * (counts + 1)
        self._seen = 0
        # the fitted coefficients, or None after a new observation
        self._found: list[float] | None = None

    def observe(self, seconds: float, *counts: float) -> None:
        row = (1.0, *counts)
        for products, one in zip(self._products, row, strict=True):
            products[:] = [FORGET * a + one * b for a, b in zip(products, row, strict=True)]
        self._targets = [FORGET * a + b * seconds for a, b in zip(self._targets, row, strict=True)]
        self._seen += 1
        self._found = None

    def predict(self, *counts: float) -> float:
        constant, *each = self._coefficients()
        return max(0.0, constant + sum(a * b for a, b in zip(each, counts, strict=True)))

    def each(self, count: int) -> float:
        """Return the fitted coefficient (seconds, at least 0) of the count with index ``count``."""
        return max(0.0, self._coefficients()[count + 1])

    def _coefficients(self) -> list[float]:
        if self._seen < FEW:
            return [0.0] * len(self._targets)
        if self._found is None:
            self._found = self._solved()
        return self._found

    def _solved(self) -> list[float]:
        # Numpy is imported here, because most schedulers need no fitted cost model.
        import numpy as np

        products = np.array(self._products)
        units = np.sqrt(np.maximum(products.diagonal(), 1e-300))
        scaled = products / np.outer(units, units)
        found = np.linalg.lstsq(scaled, np.array(self._targets) / units, rcond=1e-10)[0]
        return [float(one) for one in found / units]


class FittedCosts:
    """A ``CostModel`` that is fitted to measured steps of an engine.

    Step times are linear functions, as in the simulator's timing profiles. A prefill's time depends
    on its new tokens, on their context, and on the tokens loaded from host memory. A decode step's
    time depends on its number of requests and on the requests' context.
    """

    def __init__(self) -> None:
        self._prefill, self._decode = _Fit(3), _Fit(2)

    def observe_prefill(
        self, chunks: Iterable[tuple[int, int]], seconds: float, loaded_tokens: int = 0
    ) -> None:
        """Add a prefill step of ``seconds`` seconds to the fit.

        Args:
            chunks: Each prompt's number of cached tokens and number of new tokens.
            seconds: The measured duration of the step.
            loaded_tokens: Tokens that were loaded from host memory.
        """
        pairs = list(chunks)
        new, attended = sum(new for _, new in pairs), sum(_attended(*pair) for pair in pairs)
        self._prefill.observe(seconds, new, attended, loaded_tokens)

    def observe_decode(self, requests: int, context_tokens: int, seconds: float) -> None:
        self._decode.observe(seconds, requests, context_tokens)

    def prefill_s(self, cached_tokens: int, new_tokens: int) -> float:
        return self._prefill.predict(new_tokens, _attended(cached_tokens, new_tokens), 0)

    def load_s(self, tokens: int) -> float:
        """Return the seconds that a prefill waits for ``tokens`` tokens from host memory."""
        return tokens * self._prefill.each(2)

    def decode_step_s(self, requests: int, context_tokens: int) -> float:
        return self._decode.predict(requests, context_tokens)


def _attended(cached_tokens: int, new_tokens: int) -> float:
    """Return the number of token pairs for which a prefill computes attention."""
    return new_tokens * (cached_tokens + (new_tokens + 1) / 2)


class PromptPart(NamedTuple):
    """The part of a prompt that an engine step computed.

    ``complete`` is True for the last part of a prompt. ``load_s`` is the expected time in seconds
    to load the request's cached tokens from host memory.
    """

    request: Request
    cached_tokens: int
    new_tokens: int
    complete: bool
    load_s: float = 0.0


class Decode(NamedTuple):
    """A request that produced a token in an engine step, and its context length in tokens."""

    request: Request
    context_tokens: int


class StepTimes:
    """A meter of the GPU time of steps, for a scheduler that charges clients for GPU time.

    Durations of steps are measured with the server's clock. Time in which two steps overlap counts
    once. The model ``costs``, which is fitted to the server's own steps, divides a step's duration
    among requests. Until ``costs`` has enough observations, each step's duration is divided equally
    among requests. The time to load tokens from host memory is charged to the requests that need
    the tokens.
    """

    def __init__(self, scheduler: LocalScheduler, costs: CostModel) -> None:
        self._scheduler = scheduler
        self._costs = costs
        self._until_s = 0.0  # clients are charged for the GPU time up to this time (seconds)

    def step(
        self,
        started_s: float,
        ended_s: float,
        prompts: Sequence[PromptPart] = (),
        decoding: Sequence[Decode] = (),
    ) -> None:
        """Charge the time of an engine step to the clients.

        Args:
            started_s: Start of the step, in seconds of the server's clock.
            ended_s: End of the step, in seconds of the server's clock.
            prompts: The parts of prompts that the step computed.
            decoding: The requests that produced a token in the step.
        """
        started_s, self._until_s = max(started_s, self._until_s), max(ended_s, self._until_s)
        took_ps = max(0, round((ended_s - started_s) * PS_PER_S))
        clients: dict[str, Decoding] = {}
        for request, tokens in decoding:
            number, context = clients.get(request.client, (0, 0))
            clients[request.client] = Decoding(number + 1, context + tokens)
        chunks = [(one.cached_tokens, one.new_tokens) for one in prompts]
        loads = [round(one.load_s * PS_PER_S) for one in prompts]
        if (total := sum(loads)) > took_ps:
            loads = [load * took_ps // total for load in loads]
        parts = step_parts(self._costs, took_ps - sum(loads), chunks, clients)
        charge_prompt, charge = self._scheduler.on_prompt_time, self._scheduler.on_gpu_time
        assert charge_prompt is not None
        assert charge is not None
        for one, gpu_ps, load_ps in zip(prompts, parts.chunks, loads, strict=True):
            charge_prompt(one.request, gpu_ps + load_ps, one.complete)
        for client, gpu_ps in parts.clients.items():
            charge(client, gpu_ps)
