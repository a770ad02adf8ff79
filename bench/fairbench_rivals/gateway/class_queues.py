"""The base class of policies that order classes of requests instead of clients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from fairbench.core import Request
from fairbench.schedulers.base import Selection, WaitingView
from fairbench.schedulers.gateway.policy import FlowPolicy


class ClassQueues(FlowPolicy):
    """A policy with a queue per class, each in order of arrival; a subclass orders the classes."""

    orders_bands = True

    def __init__(self) -> None:
        # queued requests of each class, with their arrival times in seconds
        self.queues: dict[int, dict[Request, float]] = {}

    @abstractmethod
    def class_of(self, request: Request) -> int:
        """Return the class of a request; larger classes are more important."""

    @abstractmethod
    def next_class(self, waiting: Sequence[int], now_s: float) -> int | None:
        """Return the class whose first request is sent next, or None to send no request.

        ``waiting`` holds the classes with queued requests, the most important class first.
        """

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self.queues.setdefault(self.class_of(request), {})[request] = now_s

    def select(self, view: WaitingView, now_s: float) -> Selection:
        while waiting := sorted((one for one, queue in self.queues.items() if queue), reverse=True):
            chosen = self.next_class(waiting, now_s)
            if chosen is None or not (yield next(iter(self.queues[chosen]))):
                return

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        del self.queues[self.class_of(request)][request]

    def on_finish(self, request: Request) -> None:
        self.queues[self.class_of(request)].pop(request, None)
