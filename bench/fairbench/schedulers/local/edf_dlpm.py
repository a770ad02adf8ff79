"""Shares inside deadlines: EDF first, and DLPM where deadlines have nothing to say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt

from fairbench.core import NoBound, Request, ServiceBound
from fairbench.schedulers.base import Selection, Setup, WaitingView
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.edf import AGED, LATE
from fairbench.schedulers.local.urgency import Urgency


class EDFThenDLPM(DLPM):
    """Who can still be in time goes first, by deadline; all others as DLPM has it.

    Everybody is charged for everything, so who had much by its deadlines waits longer once it is
    late. On equal deadlines clients in credit go first, then the longest cached prefix. Of the
    others, who has waited for ``aging_s`` goes before all deadlines while its client is in credit:
    without this a flood of deadlines would starve who has none, and without the condition it would
    only have to grow old. No share is bounded: who asks for less time gets more.
    """

    name = "edf-dlpm"
    wants_costs = True
    per_request_tokens = True

    @dataclass(frozen=True)
    class Params(DLPM.Params):
        """Those of DLPM, and ``aging_s``, the longest wait of a client in credit."""

        aging_s: Annotated[float, Gt(0)] = 60.0

    params: Params

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._urgency = Urgency(params.aging_s)

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self._urgency.prepare(setup)

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        super().on_arrival(request, view, now_s)
        self._urgency.on_arrival(request, view, now_s)

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        self._urgency.on_request_tokens(request, tokens)

    def on_finish(self, request: Request) -> None:
        super().on_finish(request)
        self._urgency.on_finish(request)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        for request in self._urgent(view, now_s):
            if not (yield request) and self.params.no_room == "stop":
                return
        yield from super().select(view, now_s)

    def _urgent(self, view: WaitingView, now_s: float) -> Iterator[Request]:
        if len(view) and not self._someone_in_credit(view, set()):
            self._refill(view, set())
        places = self._urgency.places(view, now_s)
        order = [(*places(request), request) for request in view.match_order()]
        order = [one for one in order if one[0] != LATE]
        order.sort(key=lambda one: (one[0], one[1], self.credit[one[2].client] <= 0))
        for group, _, request in order:
            if group != AGED or self.credit[request.client] > 0:
                yield request

    def service_bound(self) -> ServiceBound | NoBound:
        return NoBound(f"{self.name} heeds deadlines before shares")
