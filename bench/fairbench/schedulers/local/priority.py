"""vLLM's ``--scheduling-policy priority``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, RunningView, Selection, Setup, WaitingView
from fairbench.schedulers.local.kept_order import least_first


class Priority(LocalScheduler):
    """The lowest number goes first, then by arrival; stops at the first request that does not fit.

    As in vLLM 0.32.0 (V1, vllm/v1/core/sched), no request is preempted to make room for another,
    but when memory runs out, the request with the highest number and latest arrival loses its
    memory. A client with a low number can starve all others, and no rule limits the choice of
    numbers.
    """

    name = "priority"
    orders_retraction = True

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``of`` maps a client to its number, instead of the request's own (or 0)."""

        of: dict[str, int] = field(default_factory=dict)

    def __init__(self, params: Params) -> None:
        self.params = params

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        setup.check_clients(f"{self.name}.of", self.params.of)

    def _place(self, request: Request) -> tuple[int, float]:
        return self.params.of.get(request.client, request.priority), request.arrival_s

    def select(self, view: WaitingView, now_s: float) -> Selection:
        for request in least_first(view, self._place):
            if not (yield request):
                return

    def retraction_order(self, running: RunningView, now_s: float) -> Sequence[Request]:
        return sorted((one.request for one in running), key=self._place, reverse=True)
