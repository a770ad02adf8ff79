"""A waiting queue that also knows which clients have requests waiting at other routers."""

from __future__ import annotations

from collections.abc import Collection

from fairbench.core import Request
from fairbench.schedulers.views import RunningView, Scan, WaitingView


class WithElsewhere:
    """A ``WaitingView`` with clients that wait at other routers, without their requests.

    For ``on_arrival`` only: whoever waits somewhere is not lifted, nor above who waits elsewhere.
    """

    def __init__(self, view: WaitingView, elsewhere: Collection[str]) -> None:
        self._view = view
        self._elsewhere = elsewhere

    @property
    def running(self) -> RunningView:
        return self._view.running

    def __len__(self) -> int:
        return len(self._view)

    def __contains__(self, request: object) -> bool:
        return request in self._view

    def clients(self) -> Collection[str]:
        return dict.fromkeys((*self._view.clients(), *self._elsewhere)).keys()

    def oldest(self, client: str) -> Request:
        return self._view.oldest(client)

    def queue_order(self) -> Scan:
        return self._view.queue_order()

    def match_order(self, *, refresh: bool = True) -> Scan:
        return self._view.match_order(refresh=refresh)

    def matched_tokens(self, request: Request) -> int:
        return self._view.matched_tokens(request)
