"""Deadlines within fair shares: DLPM chooses the client, EDF chooses the client's request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fairbench.core import Request
from fairbench.schedulers.base import Scan, WaitingView
from fairbench.schedulers.local.dlpm_reordered import ReorderedDLPM
from fairbench.schedulers.local.dlpm_urgency import UrgentDLPM


class DLPMThenEDF(UrgentDLPM, ReorderedDLPM):
    """DLPM chooses the client, and the client's most urgent request goes next.

    Turns are those of DLPM, by credit and longest cached prefix, so that who calls everything
    urgent gets no more than its share, up to the bound. What is urgent ``Urgency`` says; requests
    that are late or have no deadline keep DLPM's order behind the others of their client.
    """

    name = "dlpm-edf"

    @dataclass(frozen=True)
    class Params(UrgentDLPM.Params):
        """The parameters of DLPM and the scope of deadlines; ``aging_s`` as in ``Urgency``.

        ``within`` is ``client`` as above, or ``credit``, which orders the requests of all clients
        in credit by deadline. Deadlines then decide between clients too, though not about their
        shares.
        """

        within: Literal["client", "credit"] = "client"

    params: Params

    def _reordered(self, scan: Scan, view: WaitingView, now_s: float) -> Iterator[Request]:
        turns = list(scan)
        urgent = sorted(turns, key=self._urgency.ranks(view, now_s))
        if self.params.within == "credit":
            return iter(urgent)
        of_client: dict[str, list[Request]] = defaultdict(list)
        for request in reversed(urgent):
            of_client[request.client].append(request)
        return (of_client[turn.client].pop() for turn in turns)
