"""vLLM's priority policy (``--scheduling-policy priority``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fairbench.core import Request
from fairbench.schedulers.base import (
    LocalScheduler,
    RunningView,
    Selection,
    Setup,
    WaitingView,
)
from fairbench.schedulers.views import least_first


class Priority(LocalScheduler):
    """vLLM's priority policy: the request with the lowest priority number goes first.

    Requests with equal priority numbers are served in order of arrival. An admission pass stops at
    the first request that does not fit into memory. As in vLLM 0.32.0 (V1, vllm/v1/core/sched), no
    request is preempted to admit another request. When memory runs out, the latest request with the
    highest priority number is retracted. A client with low priority numbers can starve all others.
    """

    name = "priority"

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``of`` maps clients to priorities that replace the priorities of requests."""

        of: dict[str, int] = field(default_factory=dict)

    def __init__(self, params: Params) -> None:
        self.params = params

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        setup.check_clients(f"{self.name}.of", self.params.of)

    def _arrival_rank(self, request: Request) -> tuple[int, float, int]:
        number = self.params.of.get(request.client, request.priority)
        return number, request.arrival_s, request.request_id

    def select(self, view: WaitingView, now_s: float) -> Selection:
        for request in least_first(view, self._arrival_rank):
            if not (yield request):
                return

    def retraction_order(self, running: RunningView, now_s: float) -> Sequence[Request]:
        return sorted((one.request for one in running), key=self._arrival_rank, reverse=True)
