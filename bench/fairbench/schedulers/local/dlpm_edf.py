"""DLPM with deadlines, which order the requests of a client."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fairbench.core import Request
from fairbench.schedulers.base import Scan, WaitingView
from fairbench.schedulers.local.dlpm_bases import ReorderedDLPM, UrgentDLPM


class DLPMThenEDF(UrgentDLPM, ReorderedDLPM):
    """DLPM that serves the chosen client's most urgent request.

    Clients take turns as under DLPM, by credit and longest cached prefix. Urgent requests do not
    raise a client's service above DLPM's bound. ``UrgentDLPM`` explains how deadlines rank
    requests. A client's requests that are late or have no deadline go last, in DLPM's order.
    """

    name = "dlpm-edf"

    @dataclass(frozen=True)
    class Params(UrgentDLPM.Params):
        """The parameters of ``UrgentDLPM``; ``within`` selects the requests to order by deadline.

        With ``within=client``, deadlines order the requests of each client. With ``within=credit``,
        deadlines order the requests of all clients with positive credit; the clients' shares do not
        change.
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
