"""Fair shares within deadlines: EDF first, then DLPM for requests that deadlines do not rank."""

from __future__ import annotations

from collections.abc import Iterator

from fairbench.core import NoBound, Request, ServiceBound
from fairbench.schedulers.base import Selection, WaitingView
from fairbench.schedulers.local.dlpm_urgency import UrgentDLPM
from fairbench.schedulers.local.edf import AGED, LATE


class EDFThenDLPM(UrgentDLPM):
    """Requests that can still be in time go by deadline, all others by DLPM.

    All requests are charged in full, so a client that received much through its deadlines waits
    longer once it is late. On equal deadlines, clients in credit go first, then the longest cached
    prefix. Another request that has waited for ``aging_s`` goes before all deadlines while its
    client is in credit. Without aging, a flood of deadlines would starve requests without
    deadlines. Without the credit condition, a flood would only have to age. Shares are unbounded: a
    client that claims tighter deadlines gets more.
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
