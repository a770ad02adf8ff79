"""llm-d's program-aware policy: least attained service, combined with waiting time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairbench.core import Request
from fairbench.schedulers.base import Read, WaitingView
from fairbench.schedulers.gateway.policy import FlowPolicy, earliest
from fairbench.schedulers.params import NotNegative


class ProgramAware(FlowPolicy):
    """The highest score goes first: little attained service, and a long wait of the next request.

    The rules are llm-d's program-aware-fairness with its ``las`` strategy (llm-d-router @06aa34b);
    its programs are fairness ids, which are clients here. Attained service is input + 2 x output,
    counted when an answer has ended and halved every ``half_life_s``: requests in progress are free
    until then. Both parts are scaled between the lowest and the highest value of the waiting
    clients. The client with the least service therefore wins, unless its request is by far the
    youngest. With the default weights, a client with the most service and the longest wait never
    beats a client with neither: a stream of newcomers can starve it.
    """

    name = "program-aware"

    @dataclass(frozen=True)
    class Params:
        """Weights of attained service and of the wait of the next request, and the decay.

        A ``half_life_s`` of 0 means no decay. The original's eviction of programs idle for an hour
        is left out: by then their service has decayed to nothing.
        """

        service_weight: NotNegative = 0.8
        wait_weight: NotNegative = 0.2
        half_life_s: NotNegative = 60.0

    def __init__(self, params: Params) -> None:
        self.params = params
        self._attained: dict[str, tuple[float, float]] = {}  # client -> service and its time

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
        attained = self.attained(request.client, now_s) + read.input_tokens + 2 * output_tokens
        self._attained[request.client] = (attained, now_s)

    def attained(self, client: str, now_s: float) -> float:
        """Return the client's service, decayed until now."""
        service, as_of_s = self._attained.get(client, (0.0, now_s))
        half_life_s = self.params.half_life_s
        return service * 2 ** (-(now_s - as_of_s) / half_life_s) if half_life_s else service

    def balances(self) -> Mapping[str, float]:
        return {client: service for client, (service, _) in self._attained.items()}


def scaled(values: list[float] | list[int]) -> list[float]:
    """Scale values to between 0 (minimum) and 1 (maximum); all 0 if they are equal."""
    least, span = min(values), max(values) - min(values)
    return [(value - least) / span if span else 0.0 for value in values]
