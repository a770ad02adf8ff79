"""Combinations of DLPM with deadlines, in which either the fair shares or the deadlines go first.

``ReorderedDLPM`` is the base of schedulers that change DLPM's order among clients with positive
credit.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt

from fairbench.core import NoBound, Request, ServiceBound
from fairbench.schedulers.base import Scan, Selection, Setup, WaitingView
from fairbench.schedulers.local.dlpm import DLPM, KEPT_AS_IN_DLPM
from fairbench.schedulers.local.edf import AGED, EDF, IN_TIME, LATE
from fairbench.schedulers.views import ListScan


class UrgentDLPM(DLPM):
    """The base class of schedulers that combine DLPM's order with ranks by deadline.

    Requests that are late or have no deadline rank first once they have waited for ``aging_s``
    seconds, in order of arrival. Requests that can still be in time rank behind the aged requests,
    the earliest deadline first. Late requests and requests without a deadline share the last rank
    until they have aged.
    """

    wants_costs = True

    @dataclass(frozen=True)
    class Params(DLPM.Params):
        """The parameters of DLPM, and ``aging_s`` in seconds; inf turns aging off."""

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
        """Return a function from a request to its rank, a pair of a group and a time."""
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
    """The base class of schedulers with DLPM's credits and another order of requests.

    Subclasses replace the order by longest cached prefix. DLPM's bound still holds, because the
    bound does not depend on the order among clients with positive credit.
    """

    @abstractmethod
    def _reordered(self, scan: Scan, view: WaitingView, now_s: float) -> Iterator[Request]:
        """Yield all requests of the scan in the order that the subclass defines."""

    def _scan(self, view: WaitingView, now_s: float, refresh: bool) -> Scan:
        scan = super()._scan(view, now_s, refresh)
        return ListScan(list(self._reordered(scan, view, now_s)), view)


class DLPMThenEDF(UrgentDLPM, ReorderedDLPM):
    """DLPM that serves the most urgent request of the client that DLPM chooses.

    Clients take turns as under DLPM, by credit and longest cached prefix. A client with only urgent
    requests gets no more than its share, up to DLPM's bound. ``UrgentDLPM`` ranks requests by
    urgency. Requests that are late or have no deadline keep DLPM's order, behind all other requests
    of their client.
    """

    name = "dlpm-edf"

    @dataclass(frozen=True)
    class Params(UrgentDLPM.Params):
        """The parameters of ``UrgentDLPM``; ``within`` selects the requests to order by deadline.

        With ``within=client``, deadlines order the requests of each client. ``within=credit``
        orders the requests of all clients with positive credit by deadline. With ``within=credit``,
        deadlines decide which client with positive credit goes first, but do not change the
        clients' shares.
        """

        within: Literal["client", "credit"] = "client"

    params: Params

    def _reordered(self, scan: Scan, view: WaitingView, now_s: float) -> Iterator[Request]:
        turns = list(scan)
        urgent = sorted(turns, key=self._urgency(view, now_s))
        if self.params.within == "credit":
            return iter(urgent)
        of_client: dict[str, list[Request]] = defaultdict(list)
        for request in reversed(urgent):
            of_client[request.client].append(request)
        return (of_client[turn.client].pop() for turn in turns)


class EDFThenDLPM(UrgentDLPM):
    """Earliest deadline first for requests that can be in time, and DLPM for the rest.

    All requests are charged in full, so a client that received much service through its deadlines
    waits longer once its requests are late. Among equal deadlines, clients with positive credit go
    first, then the longest cached prefix. A late request, or a request without a deadline, that has
    waited for ``aging_s`` seconds goes before all deadlines while its client has positive credit.
    Without aging, a flood of deadlines would starve requests without deadlines. Aged requests also
    need credit, because a flood of late requests would otherwise only have to wait. No theorem
    bounds the clients' shares: a client that claims tighter deadlines gets more service.
    """

    name = "edf-dlpm"

    def select(self, view: WaitingView, now_s: float) -> Selection:
        for request in self._urgent(view, now_s):
            if not (yield request) and self.params.no_room == "stop":
                return
        yield from super().select(view, now_s)

    def _urgent(self, view: WaitingView, now_s: float) -> Iterator[Request]:
        turns = self._turns(view)
        if len(view) and not turns.someone_in_credit():
            turns.refill()
        ranks = self._urgency(view, now_s)
        order = [(*ranks(request), request) for request in view.match_order()]
        order = [one for one in order if one[0] != LATE]
        order.sort(key=lambda one: (one[0], one[1], not self.credits.in_credit(one[2].client)))
        for group, _, request in order:
            if group != AGED or self.credits.in_credit(request.client):
                yield request

    def service_bound(self) -> ServiceBound | NoBound:
        return NoBound(f"{self.name} puts deadlines before shares")
