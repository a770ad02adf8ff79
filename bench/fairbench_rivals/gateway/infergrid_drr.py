"""The policy that InferGrid calls DRR, in the version that its authors measured."""

from __future__ import annotations

from collections import Counter

from fairbench.core import Request
from fairbench.schedulers.base import WaitingView
from fairbench.schedulers.gateway.policy import FlowPolicy
from fairbench.schedulers.params import NoParams


class InfergridDRR(FlowPolicy):
    """A policy that favours requests whose client had few unfinished requests at their arrival.

    The project coconut-labs/infergrid calls this policy DRR (@a8d3ea8, tenant/manager.py,
    priority_score), although it has neither a quantum nor a deficit. A request's score is the
    number of its client's unfinished requests when the request arrives. The request with the lowest
    score goes first, and equal scores go in order of arrival. A client with many unfinished
    requests waits behind every later request of other clients, so new clients can starve it.
    """

    name = "infergrid-drr"
    Params = NoParams

    def __init__(self, params: NoParams) -> None:
        # number of queued and running requests of each client
        self._present: Counter[str] = Counter()
        self._score: dict[Request, int] = {}

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._present[request.client] += 1
        self._score[request] = self._present[request.client]

    def score(self, request: Request, now_s: float) -> float:
        return self._score[request]

    def on_finish(self, request: Request) -> None:
        self._present[request.client] -= 1
        del self._score[request]
