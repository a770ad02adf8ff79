"""Deadlines within fair shares: DLPM chooses the client, EDF chooses the client's request.

``ReorderedDLPM`` is the base of schedulers that change DLPM's order among clients in credit.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fairbench.core import Request
from fairbench.schedulers.base import Scan, WaitingView
from fairbench.schedulers.list_view import ListScan
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.dlpm_urgency import UrgentDLPM


class ReorderedDLPM(DLPM):
    """DLPM's credits and bound, which do not depend on the order among clients in credit.

    Subclasses define the order of the requests that DLPM would offer by longest cached prefix.
    """

    @abstractmethod
    def _reordered(self, scan: Scan, view: WaitingView, now_s: float) -> Iterator[Request]:
        """Yield all requests of the scan in the subclass's order."""

    def _scan(self, view: WaitingView, now_s: float, refresh: bool) -> Scan:
        scan = super()._scan(view, now_s, refresh)
        return ListScan(list(self._reordered(scan, view, now_s)), view)


class DLPMThenEDF(UrgentDLPM, ReorderedDLPM):
    """DLPM chooses the client, and the client's most urgent request goes next.

    Turns are those of DLPM, by credit and longest cached prefix, so that a client with only urgent
    requests gets no more than its share, up to the bound. ``UrgentDLPM`` defines urgency. Requests
    that are late or have no deadline keep DLPM's order behind the others of their client.
    """

    name = "dlpm-edf"

    @dataclass(frozen=True)
    class Params(UrgentDLPM.Params):
        """The parameters of DLPM and the scope of deadlines; ``aging_s`` as in ``UrgentDLPM``.

        ``within`` is ``client`` as above, or ``credit``, which orders the requests of all clients
        in credit by deadline. Deadlines then also decide between clients, though not about their
        shares.
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
