"""DLPM that prefers calls on which many other calls of their program wait ([DLPM] §9)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from fairbench.core import Request
from fairbench.schedulers.base import Scan, WaitingView
from fairbench.schedulers.local.dlpm import DLPM, KEPT_AS_IN_DLPM
from fairbench.schedulers.local.dlpm_edf import ReorderedDLPM


class UpstreamDLPM(ReorderedDLPM):
    """DLPM that first serves the most upstream call of clients with credit.

    [DLPM] §9 leaves as future work that a call whose output many other calls need should go first,
    even at the expense of prefix sharing or strict fairness. This scheduler gives up only prefix
    sharing: credit and bound are the same as in DLPM. Ties go to the longest cached prefix.
    """

    name = "dlpm-upstream"

    @dataclass(frozen=True)
    class Params(DLPM.Params):
        """The parameters of DLPM, and the rule by which a call is upstream.

        ``calls_left`` prefers the program with the most calls yet to make, and ``few_left`` the
        program with the fewest. ``depth`` prefers the call with the shortest chain of calls before
        it. If the number of calls left is unknown, as at a real server, only depth is available.
        """

        constants: ClassVar[tuple[str, ...]] = ("charge", "tenants", *KEPT_AS_IN_DLPM)

        upstream: Literal["calls_left", "few_left", "depth"] = "calls_left"

    params: Params

    def _reordered(self, scan: Scan, view: WaitingView, now_s: float) -> Iterator[Request]:
        return iter(sorted(scan, key=self._place))

    def _place(self, request: Request) -> tuple[int, int]:
        sign = {"calls_left": -1, "few_left": 1, "depth": 0}[self.params.upstream]
        return sign * (request.calls_left or 0), request.depth
