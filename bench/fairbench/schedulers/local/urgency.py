"""Urgency by deadline, for schedulers that combine deadlines with other criteria."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from fairbench.core import Request
from fairbench.schedulers.base import Setup, WaitingView
from fairbench.schedulers.local.edf import AGED, EDF, IN_TIME, LATE


class Urgency:
    """The order of ``EDF``, for requests that deadlines rank.

    Of the requests that deadlines say nothing about, late or promised nothing, those that have
    waited for ``aging_s`` go first, in order of arrival. Then come those that can still be in time,
    the earliest deadline first. All others are equal.
    """

    def __init__(self, aging_s: float) -> None:
        self.aging_s = aging_s
        self._edf = EDF(EDF.Params(aging_s=inf))
        # Hooks with the signatures of a scheduler's.
        self.on_arrival = self._edf.on_arrival
        self.on_request_tokens = self._edf.on_request_tokens
        self.on_finish = self._edf.on_finish

    def prepare(self, setup: Setup) -> None:
        """Pass the setup to the inner ``EDF``, which uses its costs."""
        self._edf.prepare(setup)

    def places(self, view: WaitingView, now_s: float) -> Callable[[Request], tuple[int, float]]:
        """Return a function that gives a request's rank: its group, then a time."""
        place = self._edf.places(view, now_s)

        def urgency(request: Request) -> tuple[int, float]:
            group, due_s = place(request)
            if group == IN_TIME and request.next_deadline_s is not None:
                return IN_TIME, due_s
            if now_s - request.arrival_s >= self.aging_s:
                return AGED, request.arrival_s
            return LATE, 0.0

        return urgency
