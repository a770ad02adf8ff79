"""Weighted fair queuing before the cluster, self-clocked (Golestani 1994)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairbench.core import Request
from fairbench.schedulers.base import Read, WaitingView
from fairbench.schedulers.gateway.policy import FlowPolicy, earliest
from fairbench.schedulers.gateway.price import PriceParams


class WFQ(FlowPolicy):
    """The request that would end first if all were served at once, by their weights.

    A client's requests follow one another in virtual time, each as long as its price over the
    client's weight; virtual time is the end of the request that went last, and a client that comes
    back starts there, so that being away saves nothing up. Nobody starves: while two clients wait,
    what they have paid differs, over their weights, by at most the price of the dearest request of
    each over its weight, if prices are not corrected. vLLM was offered the like inside the engine
    (PR 31909, closed).
    """

    name = "wfq"

    @dataclass(frozen=True)
    class Params(PriceParams):
        """As ``PriceParams``."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self.ends: dict[str, float] = {}  # when each client's last request ends, in virtual time
        self._virtual = 0.0

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        client = request.client
        if client not in view.clients():
            self.ends[client] = max(self._virtual, self.ends.get(client, 0.0))

    def next_flow(self, view: WaitingView, now_s: float) -> str:
        def end(client: str) -> tuple[float, float, int]:
            length = self._length(client, self.params.of(view.oldest(client)))
            return self.ends[client] + length, *earliest(view, client)

        return min(view.clients(), key=end)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self.ends[request.client] += self._length(request.client, self.params.of(request))
        self._virtual = max(self._virtual, self.ends[request.client])

    def on_answer(self, request: Request, read: Read, output_tokens: int, now_s: float) -> None:
        correction = self.params.correction(request, read, output_tokens)
        self.ends[request.client] += self._length(request.client, correction)

    def _length(self, client: str, price: float) -> float:
        return price / self.setup.weight(client)

    def balances(self) -> Mapping[str, float]:
        return self.ends
