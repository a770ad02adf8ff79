"""DLPM that serves calls first on which many others of their program wait ([DLPM] §9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairbench.core import Request
from fairbench.schedulers.base import Scan, WaitingView
from fairbench.schedulers.list_view import ListScan
from fairbench.schedulers.local.dlpm import DLPM


class UpstreamDLPM(DLPM):
    """Among clients in credit the most upstream call first, then the longest cached prefix.

    [DLPM] §9 leaves it as future work: a call may produce the input of many others, so it had
    better go first, even if that breaks prefix sharing or strict fairness. Here it breaks the
    former alone: credit is as in DLPM, and so is the bound.
    """

    name = "dlpm-upstream"

    @dataclass(frozen=True)
    class Params(DLPM.Params):
        """Those of DLPM, and what is upstream.

        ``calls_left``: that of a program which has yet to make the most calls; ``depth``: the one
        with the shortest chain of calls before it. Where nobody says how many calls are left,
        as at a real server, depth is all that is known.
        """

        upstream: Literal["calls_left", "depth"] = "calls_left"

    params: Params

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._waiting: set[Request] = set()

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        super().on_arrival(request, view, now_s)
        self._waiting.add(request)

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        super().on_retract(request, view, now_s)
        self._waiting.add(request)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        super().on_admitted(request, extend_tokens, recompute)
        self._waiting.discard(request)

    def on_finish(self, request: Request) -> None:
        super().on_finish(request)
        self._waiting.discard(request)

    def _scan(self, view: WaitingView, refresh: bool) -> Scan:
        return ListScan(sorted(super()._scan(view, refresh), key=self._place), self._waiting)

    def _place(self, request: Request) -> tuple[int, int]:
        left = request.calls_left or 0
        return (-left if self.params.upstream == "calls_left" else 0), request.depth
