"""llm-d's program-aware policy: least attained service, combined with waiting time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fairbench.core import OUTPUT_PRICE, Request
from fairbench.schedulers.base import Read, WaitingView
from fairbench.schedulers.gateway.policy import FlowPolicy, earliest
from fairbench.schedulers.params import NotNegative


class ProgramAware(FlowPolicy):
    """A policy that favours clients with little attained service and a long wait.

    The rules are llm-d's program-aware-fairness with the ``las`` strategy (llm-d-router @06aa34b).
    llm-d's programs (fairness ids) correspond to fairbench's clients. Attained service is the input
    + 2 x output tokens of finished answers, and halves every ``half_life_s`` seconds. Service and
    waiting time are each scaled to the range from 0 to 1 over the waiting clients. The client with
    the least service goes first, unless its request is by far the youngest. With the default
    weights, the client with the most service never goes before a client without service, even after
    the longest wait. A stream of new clients can starve a client that has already received service.
    """

    name = "program-aware"

    @dataclass(frozen=True)
    class Params:
        """Parameters: weights and half-life of attained service, and the weight of waiting time.

        If ``half_life_s`` is 0, service does not decay. Unlike llm-d, this policy does not forget
        programs that are idle for an hour, because their attained service has decayed to almost 0.
        """

        constants: ClassVar[tuple[str, ...]] = ("half_life_s", "service_weight", "wait_weight")

        service_weight: NotNegative = 0.8
        wait_weight: NotNegative = 0.2
        half_life_s: NotNegative = 60.0

    def __init__(self, params: Params) -> None:
        self.params = params
        # each client's attained service, and the time in seconds of its last update
        self._attained: dict[str, tuple[float, float]] = {}

    def next_flow(self, view: WaitingView, now_s: float) -> str:
        waiting = list(view.clients())
        service = scaled([self.attained(client, now_s) for client in waiting])
        waits_ms = [int(1_000 * (now_s - earliest(view, client)[0])) for client in waiting]
        params = self.params
        scores = [
            params.service_weight * (1 - attained) + params.wait_weight * wait
            for attained, wait in zip(service, scaled(waits_ms), strict=True)
        ]
        best = max(scores)
        tied = [one for one, score in zip(waiting, scores, strict=True) if score == best]
        return min(tied, key=lambda client: earliest(view, client))

    def on_answer(self, request: Request, read: Read, output_tokens: int, now_s: float) -> None:
        served = read.input_tokens + OUTPUT_PRICE * output_tokens
        self._attained[request.client] = (self.attained(request.client, now_s) + served, now_s)

    def attained(self, client: str, now_s: float) -> float:
        """Return a client's attained service, decayed until ``now_s``."""
        service, as_of_s = self._attained.get(client, (0.0, now_s))
        half_life_s = self.params.half_life_s
        return service * 2 ** (-(now_s - as_of_s) / half_life_s) if half_life_s else service

    def balances(self) -> Mapping[str, float]:
        return {client: service for client, (service, _) in self._attained.items()}


def scaled(values: list[float] | list[int]) -> list[float]:
    """Scale the values so that the minimum is 0 and the maximum 1; equal values become 0."""
    least, span = min(values), max(values) - min(values)
    return [(value - least) / span if span else 0.0 for value in values]
