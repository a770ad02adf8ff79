"""DLPM combined with deadlines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Annotated

from annotated_types import Gt

from fairbench.core import Request
from fairbench.schedulers.base import Setup, WaitingView
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.edf import AGED, EDF, IN_TIME, LATE


class UrgentDLPM(DLPM):
    """DLPM with the order of ``EDF`` for requests that deadlines rank; subclasses combine the two.

    Requests that are late or have no deadline go first, in order of arrival, once they have waited
    for ``aging_s``. Then come requests that can still be in time, the earliest deadline first. All
    others are equal.
    """

    wants_costs = True
    per_request_tokens = True

    @dataclass(frozen=True)
    class Params(DLPM.Params):
        """The parameters of DLPM, and ``aging_s`` as above; inf turns aging off."""

        aging_s: Annotated[float, Gt(0)] = 60.0

    params: Params

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._edf = EDF(EDF.Params(aging_s=inf))

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self._edf.prepare(setup)

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        super().on_arrival(request, view, now_s)
        self._edf.on_arrival(request, view, now_s)

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        self._edf.on_request_tokens(request, tokens)

    def on_finish(self, request: Request) -> None:
        super().on_finish(request)
        self._edf.on_finish(request)

    def _urgency(self, view: WaitingView, now_s: float) -> Callable[[Request], tuple[int, float]]:
        """Return a function that gives a request's rank: its group, then a time."""
        rank = self._edf.ranks(view, now_s)

        def urgency(request: Request) -> tuple[int, float]:
            group, due_s = rank(request)
            if group == IN_TIME and request.next_deadline_s is not None:
                return IN_TIME, due_s
            if now_s - request.arrival_s >= self.params.aging_s:
                return AGED, request.arrival_s
            return LATE, 0.0

        return urgency
