"""Longest prefix match: SGLang's cache-aware policy ([DLPM] §4.1)."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.schedulers.base import LocalScheduler, Selection, WaitingView
from fairbench.schedulers.params import NotNegativeInt


class LPM(LocalScheduler):
    """Longest cached prefix first; a pass stops at the first request that does not fit."""

    name = "lpm"
    cache_aware = True

    @dataclass(frozen=True)
    class Params:
        """Parameters: with more than ``queue_limit`` waiting requests, LPM does not match or sort.

        SGLang's own limit is 128 (since PR #1896), which makes LPM near FCFS under load. 0 means no
        limit, which is the LPM of the papers.
        """

        queue_limit: NotNegativeInt = 0

    def __init__(self, params: Params) -> None:
        self.params = params

    def select(self, view: WaitingView, now_s: float) -> Selection:
        limit = self.params.queue_limit
        for request in view.match_order(refresh=not limit or len(view) <= limit):
            if not (yield request):
                return
