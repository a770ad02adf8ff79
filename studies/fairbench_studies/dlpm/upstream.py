"""A variant of DLPM that prefers calls whose output later calls need ([DLPM] §9)."""

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

    A call is upstream if later calls need its output. As future work, [DLPM] §9 suggests serving
    upstream calls first, even at the expense of prefix sharing or strict fairness. UpstreamDLPM
    gives up prefix sharing but not fairness, because it keeps DLPM's credits and bounds. Among
    calls of equal rank, the call with the longest cached prefix goes first.
    """

    name = "dlpm-upstream"

    @dataclass(frozen=True)
    class Params(DLPM.Params):
        """The parameters of DLPM, and ``upstream``, which selects the calls that are served first.

        ``calls_left`` prefers the program with the most remaining calls, and ``few_left`` prefers
        the program with the fewest remaining calls. ``depth`` prefers the call after the shortest
        chain of earlier calls. A real server does not know how many calls remain in a program, so
        it supports only ``depth``.
        """

        constants: ClassVar[tuple[str, ...]] = ("charge", "tenants", *KEPT_AS_IN_DLPM)

        upstream: Literal["calls_left", "few_left", "depth"] = "calls_left"

    params: Params

    def _reordered(self, scan: Scan, view: WaitingView, now_s: float) -> Iterator[Request]:
        return iter(sorted(scan, key=self._place))

    def _place(self, request: Request) -> tuple[int, int]:
        sign = {"calls_left": -1, "few_left": 1, "depth": 0}[self.params.upstream]
        return sign * (request.calls_left or 0), request.depth
