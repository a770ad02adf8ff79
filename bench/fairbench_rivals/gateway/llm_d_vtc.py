"""llm-d's virtual token counter, which assumes output lengths instead of measuring them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fairbench.core import Request
from fairbench.schedulers.base import Read, WaitingView
from fairbench.schedulers.gateway.policy import FlowPolicy, PriceParams
from fairbench.schedulers.params import Positive


class LlmdVTC(FlowPolicy):
    """A VTC policy whose counters assume that each request has 128 output tokens.

    The rules are those proposed for llm-d (llm-d-router PR 1222 @abb3e5b, closed; issue 1182).
    Every output is charged as 128 tokens, so a client with longer outputs pays only for a part of
    its outputs. A client without a counter starts at the lowest counter of the waiting clients. An
    idle client keeps its counter until its queue is forgotten. Unlike in VTC, the counter is not
    raised when the client returns, so an idle client may save up an unlimited amount of service. In
    a fixed set of clients, no client starves. An endless sequence of new clients can starve a
    client.
    """

    name = "llm-d-vtc"

    @dataclass(frozen=True)
    class Params(PriceParams):
        """Prices of tokens, and ``forget_s``: idle seconds until a client is forgotten."""

        constants: ClassVar[tuple[str, ...]] = (
            "assumed_output_tokens",
            "input_weight",
            "output_weight",
        )

        output_weight: Positive = 3.0
        corrected: bool = False
        forget_s: Positive = 300.0

    def __init__(self, params: Params) -> None:
        self.params = params
        self.counters: dict[str, float] = {}
        # latest time in seconds at which each client had a waiting request
        self._active_s: dict[str, float] = {}

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        waiting = view.clients()
        for client, active_s in list(self._active_s.items()):
            if client not in waiting and now_s - active_s > self.params.forget_s:
                del self._active_s[client], self.counters[client]
        if request.client not in self.counters:
            lowest = min((self.counters[one] for one in waiting), default=0.0)
            self.counters[request.client] = lowest
        self._active_s[request.client] = now_s

    def next_flow(self, view: WaitingView, now_s: float) -> str:
        for client in view.clients():
            self._active_s[client] = now_s
        return super().next_flow(view, now_s)

    def score(self, request: Request, now_s: float) -> float:
        return self.counters[request.client]

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self.counters[request.client] += self.params.price_of(request)

    def on_answer(self, request: Request, read: Read, output_tokens: int, now_s: float) -> None:
        if request.client in self.counters:
            self.counters[request.client] += self.params.correction(request, read, output_tokens)

    def balances(self) -> Mapping[str, float]:
        return self.counters
