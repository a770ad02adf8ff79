"""InferGrid's rule that is called deficit round robin, as its authors measured it."""

from __future__ import annotations

from collections import Counter

from fairbench.core import Request
from fairbench.schedulers.base import WaitingView
from fairbench.schedulers.gateway.policy import FlowPolicy
from fairbench.schedulers.params import NoParams


class InfergridDRR(FlowPolicy):
    """The client that had the fewest requests, queued or in progress, at the arrival goes first.

    coconut-labs/infergrid calls this policy DRR (@a8d3ea8, tenant/manager.py, priority_score): it
    has no quantum and no deficit, but a count of requests that is frozen at arrival; ties go in
    order of arrival. A request of a client with k others waits behind every later request of a
    client with fewer, so a stream of newcomers starves a client that has many.
    """

    name = "infergrid-drr"
    Params = NoParams

    def __init__(self, params: NoParams) -> None:
        self._present: Counter[str] = Counter()  # requests that are queued here or in progress
        self._score: dict[Request, int] = {}

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._present[request.client] += 1
        self._score[request] = self._present[request.client]

    def score(self, request: Request, now_s: float) -> float:
        return self._score[request]

    def on_finish(self, request: Request) -> None:
        self._present[request.client] -= 1
        del self._score[request]
