"""A variant of DLPM that prefers calls whose output many later calls need ([DLPM] §9)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from fairbench.core import Request
from fairbench.schedulers.base import Scan, WaitingView
from fairbench.schedulers.local.dlpm import DLPM, KEPT_AS_IN_DLPM
from fairbench.schedulers.local.dlpm_bases import ReorderedDLPM


class UpstreamDLPM(ReorderedDLPM):
    """A DLPM scheduler that, among clients with credit, serves the most upstream call first.

    A call is upstream if later calls need its output. [DLPM] §9 suggests for future work that a
    call whose output many other calls need should go first, even at the expense of prefix sharing
    or strict fairness. This scheduler gives up only prefix sharing, because credit and bound are
    the same as in DLPM. Among equally upstream calls, the call with the longest cached prefix goes
    first.
    """

    name = "dlpm-upstream"

    @dataclass(frozen=True)
    class Params(DLPM.Params):
        """The parameters of DLPM, and the rule by which a call counts as upstream.

        ``calls_left`` prefers the program with the most calls yet to make, and ``few_left`` prefers
        the program with the fewest. ``depth`` prefers the call that follows the shortest chain of
        earlier calls. A real server does not know the number of remaining calls; therefore only
        ``depth`` works there.
        """

        constants: ClassVar[tuple[str, ...]] = ("charge", "tenants", *KEPT_AS_IN_DLPM)

        upstream: Literal["calls_left", "few_left", "depth"] = "calls_left"

    params: Params

    def _reordered(self, scan: Scan, view: WaitingView, now_s: float) -> Iterator[Request]:
        return iter(sorted(scan, key=self._place))

    def _place(self, request: Request) -> tuple[int, int]:
        sign = {"calls_left": -1, "few_left": 1, "depth": 0}[self.params.upstream]
        return sign * (request.calls_left or 0), request.depth
