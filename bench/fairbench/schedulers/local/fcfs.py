"""First come, first served: SGLang's default policy."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.schedulers.base import LocalScheduler, Selection, WaitingView


class FCFS(LocalScheduler):
    """Queue order; stops at the first request that does not fit."""

    name = "fcfs"

    @dataclass(frozen=True)
    class Params:
        """FCFS has no parameters."""

    def __init__(self, params: Params) -> None:
        self.params = params

    def select(self, view: WaitingView, now_s: float) -> Selection:
        for request in view.queue_order():
            if not (yield request):
                return
