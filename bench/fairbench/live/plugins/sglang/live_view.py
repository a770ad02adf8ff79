"""SGLang's waiting queue as a scheduler sees it, and as SGLang is made to walk it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from fairbench.core import Request
from fairbench.schedulers.list_view import ListScan

Req = Any  # SGLang's request


class ArmedQueue(list[Req]):
    """A list that, once armed, is iterated over once in the order a scheduler selects.

    SGLang admits with ``for req in self.waiting_queue``: no hook is needed inside that loop.
    """

    armed: Iterator[Req] | None = None

    def __iter__(self) -> Iterator[Req]:
        order, self.armed = self.armed, None
        return super().__iter__() if order is None else order


class LiveView:
    """A WaitingView. ``enter`` and ``leave`` keep it equal to SGLang's queue.

    ``sort(refresh)`` returns the queue in match order, SGLang's own; ``match(req)`` returns a
    request's cached tokens.
    """

    def __init__(self, sort: Callable[[bool], list[Req]], match: Callable[[Req], int]) -> None:
        self._sort = sort
        self._match = match
        self._reqs: dict[Request, Req] = {}  # in queue order
        self._requests: dict[Req, Request] = {}
        self._of_client: dict[str, dict[Request, None]] = {}

    def __len__(self) -> int:
        return len(self._reqs)

    def __contains__(self, request: Request) -> bool:
        return request in self._reqs

    def clients(self) -> Collection[str]:
        return self._of_client.keys()

    def oldest(self, client: str) -> Request:
        return next(iter(self._of_client[client]))

    def queue_order(self) -> ListScan:
        return ListScan(list(self._reqs), self._reqs)

    def match_order(self, *, refresh: bool = True) -> ListScan:
        ordered = self._sort(refresh)
        # What is not in the view has been admitted in this pass, or is none of ours.
        order = [self._requests[req] for req in ordered if req in self._requests]
        return ListScan(order, self._reqs)

    def matched_tokens(self, request: Request) -> int:
        return self._match(self._reqs[request])

    # The home's side.

    def enter(self, request: Request, req: Req) -> None:
        """Append an arrival or a retracted request."""
        self._reqs[request] = req
        self._requests[req] = request
        self._of_client.setdefault(request.client, {})[request] = None

    def leave(self, request: Request) -> None:
        """Take out what was admitted or aborted."""
        del self._requests[self._reqs.pop(request)]
        mine = self._of_client[request.client]
        del mine[request]
        if not mine:
            del self._of_client[request.client]

    def req_of(self, request: Request) -> Req:
        """SGLang's object. Raises KeyError if the request is not waiting."""
        return self._reqs[request]
