"""kthena's fairness queue: the client with the least usage in a sliding window goes first."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from fairbench.core import OUTPUT_PRICE, Request
from fairbench.schedulers.base import Read, WaitingView
from fairbench.schedulers.gateway.policy import FlowPolicy
from fairbench.schedulers.params import NotNegative, Positive


class Kthena(FlowPolicy):
    """A policy in which a request's priority depends on the recent tokens of its client at arrival.

    The rules are those of the priority queue of volcano-sh/kthena @3cc05728
    (pkg/kthena-router/datastore). The tokens of a request are counted when its answer has ended. A
    request keeps its priority until it is sent. A client without answers in the window overtakes
    all other clients until its first answer has ended. The whole first burst of a new client goes
    before all other requests, and a stream of new clients starves any client that has used tokens.
    In kthena, the queue releases 100 requests a second if unfinished requests are not limited. In
    fairbench, the saturation detector decides when a request is released. The window in which a
    client's tokens are counted is exact in fairbench, but consists of whole seconds in kthena.
    """

    name = "kthena"

    @dataclass(frozen=True)
    class Params:
        """Parameters: weights of a token and of an answered request, and the window in seconds.

        ``refreshed`` orders requests by current usage instead of usage at arrival. In kthena, an
        optional setting updates a client's usage only for the request at the head of the queue.
        """

        constants: ClassVar[tuple[str, ...]] = ("input_weight", "output_weight", "request_weight")

        input_weight: NotNegative = 1.0
        output_weight: NotNegative = float(OUTPUT_PRICE)
        request_weight: NotNegative = 0.0
        window_s: Positive = 300.0
        refreshed: bool = False

    def __init__(self, params: Params) -> None:
        self.params = params
        # each client's answers in the window as (time in seconds, weighted tokens), oldest first
        self._answers: dict[str, deque[tuple[float, float]]] = {}
        self._usage: dict[str, float] = {}
        self._priority: dict[Request, float] = {}

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._priority[request] = self.usage(request.client, now_s)

    def score(self, request: Request, now_s: float) -> float:
        if self.params.refreshed:
            return self.usage(request.client, now_s)
        return self._priority[request]

    def on_answer(self, request: Request, read: Read, output_tokens: int, now_s: float) -> None:
        params = self.params
        tokens = params.input_weight * read.input_tokens + params.output_weight * output_tokens
        counted = tokens + params.request_weight
        self._answers.setdefault(request.client, deque()).append((now_s, counted))
        self._usage[request.client] = self._usage.get(request.client, 0.0) + counted

    def on_finish(self, request: Request) -> None:
        self._priority.pop(request, None)

    def usage(self, client: str, now_s: float) -> float:
        """Return a client's usage: the weighted tokens of its answers in the window."""
        answers = self._answers.get(client, deque())
        while answers and answers[0][0] < now_s - self.params.window_s:
            self._usage[client] -= answers.popleft()[1]
        return self._usage[client] if answers else 0.0

    def balances(self) -> dict[str, float]:
        return dict(self._usage)
