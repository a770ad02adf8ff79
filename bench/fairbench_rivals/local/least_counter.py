"""The base class of schedulers that serve the client with the lowest counter first."""

from __future__ import annotations

from abc import abstractmethod

from fairbench.core import NoBound, Request, ServiceBound
from fairbench.schedulers.base import LocalScheduler, Selection, WaitingView


class LeastCounter(LocalScheduler):
    """A scheduler that serves the client with the lowest score; clients that tie take turns."""

    def __init__(self, *lifted: dict[str, float]) -> None:
        self._lifted = lifted  # counters that are raised for a new or returning client
        self._turn: dict[str, int] = {}  # sequence number of each client's last admission
        self._picks = 0

    @abstractmethod
    def _score(self, client: str) -> float:
        """Return a client's score; the client with the lowest score goes next."""

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        waiting = view.clients()
        if request.client in waiting:
            return
        # Raise the client's counters to the lowest counters of the waiting clients.
        for counters in self._lifted:
            least = min((counters[other] for other in waiting), default=0.0)
            counters[request.client] = max(counters.get(request.client, 0.0), least)

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        self.on_arrival(request, view, now_s)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        while waiting := view.clients():
            client = min(waiting, key=lambda c: (self._score(c), self._turn.get(c, -1)))
            if not (yield view.oldest(client)):
                return

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self._turn[request.client] = self._picks
        self._picks += 1

    def service_bound(self) -> ServiceBound | NoBound:
        return NoBound(f"{self.name} bounds no service difference")
