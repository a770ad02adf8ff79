"""DLPM that prefers calls on which many other calls of their program wait ([DLPM] §9)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fairbench.core import Request
from fairbench.schedulers.base import Scan, WaitingView
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.dlpm_edf import ReorderedDLPM


class UpstreamDLPM(ReorderedDLPM):
    """Most upstream call first among clients in credit, then the longest cached prefix.

    [DLPM] §9 leaves this as future work: a call that produces the input of many others should go
    first, even if that breaks prefix sharing or strict fairness. Here it breaks only prefix
    sharing: credit and the bound are as in DLPM.
    """

    name = "dlpm-upstream"

    @dataclass(frozen=True)
    class Params(DLPM.Params):
        """The parameters of DLPM, and the meaning of upstream.

        ``calls_left`` prefers the program with the most calls yet to make. ``depth`` prefers the
        call with the shortest chain of calls before it. If the number of calls left is unknown, as
        at a real server, only depth is available.
        """

        upstream: Literal["calls_left", "depth"] = "calls_left"

    params: Params

    def _reordered(self, scan: Scan, view: WaitingView, now_s: float) -> Iterator[Request]:
        return iter(sorted(scan, key=self._place))

    def _place(self, request: Request) -> tuple[int, int]:
        left = request.calls_left or 0
        return (-left if self.params.upstream == "calls_left" else 0), request.depth
