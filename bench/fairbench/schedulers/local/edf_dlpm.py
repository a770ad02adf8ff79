"""The scheduler ``edf-dlpm``, which combines earliest deadline first with DLPM."""

from __future__ import annotations

from collections.abc import Iterator

from fairbench.core import NoBound, Request, ServiceBound
from fairbench.schedulers.base import Selection, WaitingView
from fairbench.schedulers.local.dlpm_bases import UrgentDLPM
from fairbench.schedulers.local.edf import AGED, LATE


class EDFThenDLPM(UrgentDLPM):
    """Earliest deadline first for requests that can be in time, and DLPM for other requests.

    Requests with deadlines are also charged in full. A client that got much service because of its
    deadlines waits for other clients once its requests are late. Among requests with equal
    deadlines, requests of clients with positive credit go first, and then requests with longer
    cached prefixes. A late request, or a request without a deadline, goes first after ``aging_s``
    seconds if its client has positive credit. Without aging, many requests with deadlines would
    starve requests without deadlines. Aging requires credit, so that no client gets ahead by
    sending many late requests. No theorem bounds the clients' shares: a client that claims tighter
    deadlines gets more service.
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
