"""VTC for prefill workers, which serves a client's request with the longest cached prefix first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fairbench.schedulers.base import Selection, WaitingView
from fairbench.schedulers.local.vtc import VTC


class MatchingVTC(VTC):
    """VTC that serves a client's request with the longest cached prefix first.

    The counters include cached prompt tokens, because a prefill worker sends the KV cache of the
    whole prompt to a decode worker. The bound of VTC holds, because its proof allows any order
    among the requests of one client.
    """

    name = "vtc-match"
    cache_aware = True

    @dataclass(frozen=True)
    class Params(VTC.Params):
        """VTC's parameters, which are fixed here; ``charge=input`` also charges cached tokens."""

        constants: ClassVar[tuple[str, ...]] = (
            *("charge", "lift", "sharing", "tenants", "form", "weights", "preempt"),
            *("input_weight", "output_weight"),
        )

        charge: Literal["input"] = "input"

    def select(self, view: WaitingView, now_s: float) -> Selection:
        matches = False
        while waiting := view.clients():
            client = self.account.least(waiting)
            # A scheduling pass looks up the cached prefixes of the queue only once.
            scan = view.match_order(refresh=not matches)
            matches = True
            for other in waiting:
                if other != client:
                    scan.skip(other)
            if not (yield next(scan)):
                return
