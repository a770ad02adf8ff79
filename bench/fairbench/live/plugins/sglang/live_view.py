"""SGLang's waiting queue as a scheduler sees it, and as SGLang is made to walk it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fairbench.core import Request
from fairbench.schedulers.list_view import ListScan, QueueView
from fairbench.schedulers.views import RunningView

Req = Any  # SGLang's request


class ArmedQueue(list[Req]):
    """A list that, once armed, is iterated over once in the order a scheduler selects.

    SGLang admits with ``for req in self.waiting_queue``: no hook is needed inside that loop.
    """

    armed: Iterator[Req] | None = None

    def __iter__(self) -> Iterator[Req]:
        order, self.armed = self.armed, None
        return super().__iter__() if order is None else order


class LiveView(QueueView):
    """A WaitingView. ``track`` and ``leave`` keep it equal to SGLang's queue.

    ``sort(refresh)`` returns the queue in match order, SGLang's own; ``match(req)`` returns a
    request's cached tokens.
    """

    def __init__(
        self,
        sort: Callable[[bool], list[Req]],
        match: Callable[[Req], int],
        running: RunningView | None = None,
    ) -> None:
        super().__init__(running)
        self._sort = sort
        self._match = match
        self._reqs: dict[Request, Req] = {}
        self._request_of: dict[Req, Request] = {}

    def match_order(self, *, refresh: bool = True) -> ListScan:
        ordered = self._sort(refresh)
        # A request that the view lacks was admitted in this pass, or is not ours.
        order = [self._request_of[req] for req in ordered if req in self._request_of]
        return ListScan(order, self)

    def matched_tokens(self, request: Request) -> int:
        return self._match(self._reqs[request])

    # The home's side.

    def track(self, request: Request, req: Req) -> None:
        """Append an arrival or a retracted request, and what it is to SGLang."""
        self.enter(request)
        self._reqs[request] = req
        self._request_of[req] = request

    def leave(self, request: Request) -> None:
        super().leave(request)
        del self._request_of[self._reqs.pop(request)]

    def req_of(self, request: Request) -> Req:
        """Return SGLang's object. Raises KeyError if the request is not waiting."""
        return self._reqs[request]

    def end_pass(self) -> None:
        """Do nothing: what was admitted has left."""
