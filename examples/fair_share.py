"""An example of your own fair scheduler: the client with the least service goes next, as in VTC.

FAIRBENCH_SCHEDULERS=examples/fair_share.py fairbench run --local fair-share --dp 4
"""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.core import Request
from fairbench.schedulers.accounts.counters import Counters
from fairbench.schedulers.base import Selection, WaitingView
from fairbench.schedulers.local.fair import FairParams, FairScheduler


class FairShare(FairScheduler):
    """Serves the client with the lowest counter; weights and tenants come from the base class."""

    name = "fair-share"

    @dataclass(frozen=True)
    class Params(FairParams):
        """The parameters that every fair scheduler has."""

    def __init__(self, params: Params) -> None:
        self.counters = Counters(params.output_weight, tenants=params.tenants)
        self.compose(self.counters, params)

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self.counters.enter(request.client, view.clients())

    def select(self, view: WaitingView, now_s: float) -> Selection:
        while waiting := view.clients():
            if not (yield view.oldest(self.counters.least(waiting))):
                return
