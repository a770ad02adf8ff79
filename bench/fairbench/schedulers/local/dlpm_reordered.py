"""DLPM with a different order among the requests of clients in credit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from fairbench.core import Request
from fairbench.schedulers.base import Scan, WaitingView
from fairbench.schedulers.list_view import ListScan
from fairbench.schedulers.local.dlpm import DLPM


class ReorderedDLPM(DLPM):
    """DLPM's credits and bound, which do not depend on the order among clients in credit.

    Subclasses say in which order the requests are offered that DLPM would offer longest cached
    prefix first.
    """

    def __init__(self, params: DLPM.Params) -> None:
        super().__init__(params)
        self._waiting: set[Request] = set()

    @abstractmethod
    def _reordered(self, scan: Scan, view: WaitingView, now_s: float) -> Iterator[Request]:
        """Yield all requests of the scan in the subclass's order."""

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

    def _scan(self, view: WaitingView, now_s: float, refresh: bool) -> Scan:
        scan = super()._scan(view, now_s, refresh)
        return ListScan(list(self._reordered(scan, view, now_s)), self._waiting)
