"""The scheduler FCFS (first come, first served), which is SGLang's default policy."""

from __future__ import annotations

from fairbench.schedulers.base import LocalScheduler, Selection, WaitingView
from fairbench.schedulers.params import NoParams


class FCFS(LocalScheduler):
    """First come, first served; a pass stops at the first request that does not fit."""

    name = "fcfs"
    Params = NoParams

    def __init__(self, params: NoParams) -> None:
        self.params = params

    def select(self, view: WaitingView, now_s: float) -> Selection:
        for request in view.queue_order():
            if not (yield request):
                return
