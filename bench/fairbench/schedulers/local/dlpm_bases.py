"""Base classes of schedulers that combine DLPM's credits with deadlines or with another order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Annotated, ClassVar

from annotated_types import Gt

from fairbench.core import Request
from fairbench.schedulers.base import Scan, Setup, WaitingView
from fairbench.schedulers.local.dlpm import DLPM, KEPT_AS_IN_DLPM
from fairbench.schedulers.local.edf import AGED, EDF, IN_TIME, LATE
from fairbench.schedulers.views import ListScan


class UrgentDLPM(DLPM):
    """The base class of schedulers that combine DLPM with deadlines.

    Requests that can still meet their deadlines are ranked by deadline. Requests that are late or
    have no deadline rank last. Once a late request, or a request without a deadline, has waited for
    ``aging_s`` seconds, it ranks first, in order of arrival.
    """

    wants_costs = True

    @dataclass(frozen=True)
    class Params(DLPM.Params):
        """The parameters of DLPM, and ``aging_s`` in seconds, where inf turns aging off."""

        constants: ClassVar[tuple[str, ...]] = KEPT_AS_IN_DLPM

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
        """Return a function that maps a request to its rank, a pair of a group and a time (s)."""
        rank = self._edf.ranks(view, now_s)

        def urgency(request: Request) -> tuple[int, float]:
            group, due_s = rank(request)
            if group == IN_TIME and request.next_deadline_s is not None:
                return IN_TIME, due_s
            if now_s - request.arrival_s >= self.params.aging_s:
                return AGED, request.arrival_s
            return LATE, 0.0

        return urgency


class ReorderedDLPM(DLPM):
    """The base class of schedulers with DLPM's credits and an order of requests other than DLPM's.

    DLPM's bound still holds, because it does not depend on the order among clients with positive
    credit.
    """

    @abstractmethod
    def _reordered(self, scan: Scan, view: WaitingView, now_s: float) -> Iterator[Request]:
        """Yield all requests of ``scan`` in the order that the subclass defines."""

    def _scan(self, view: WaitingView, now_s: float, refresh: bool) -> Scan:
        scan = super()._scan(view, now_s, refresh)
        return ListScan(list(self._reordered(scan, view, now_s)), view)
