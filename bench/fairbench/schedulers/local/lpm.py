"""SGLang's policy longest prefix match (LPM, [DLPM] §4.1)."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.schedulers.base import LocalScheduler, Selection, WaitingView
from fairbench.schedulers.params import NotNegativeInt


class LPM(LocalScheduler):
    """A scheduler that sorts by cached prefix length; a pass ends when a request does not fit."""

    name = "lpm"
    cache_aware = True

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``queue_limit`` is the longest queue that LPM matches and sorts.

        SGLang (since PR #1896) replaces LPM by FCFS if more than 128 requests wait.
        ``queue_limit=0`` means no limit.
        """

        queue_limit: NotNegativeInt = 0

    def __init__(self, params: Params) -> None:
        self.params = params

    def select(self, view: WaitingView, now_s: float) -> Selection:
        limit = self.params.queue_limit
        for request in view.match_order(refresh=not limit or len(view) <= limit):
            if not (yield request):
                return
