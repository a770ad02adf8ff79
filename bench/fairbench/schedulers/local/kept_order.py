"""Waiting requests sorted by a key: kept in order, or sorted in each pass."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from heapq import heapify, heappop
from itertools import count
from typing import Any

from sortedcontainers import SortedList

from fairbench.core import Request
from fairbench.schedulers.views import WaitingView


class KeptOrder:
    """Least key first, equal keys by entry. A change or a candidate takes O(log n).

    This suits long queues of which a pass reaches little: ``least_first`` examines the whole queue
    each time.
    """

    def __init__(self) -> None:
        self._sorted = SortedList()  # key, number of entry, request
        self._entries: dict[Request, tuple[Any, int, Request]] = {}
        self._numbers = count()

    def enter(self, request: Request, key: Any) -> None:
        """Insert a request, or move it to a new key, behind requests with an equal key."""
        self.leave(request)
        entry = key, next(self._numbers), request
        self._entries[request] = entry
        self._sorted.add(entry)

    def leave(self, request: Request) -> None:
        """Remove a request; nothing happens if it is not there."""
        entry = self._entries.pop(request, None)
        if entry is not None:
            self._sorted.remove(entry)

    def within(self, view: Container[Request]) -> Iterator[Request]:
        """Yield the present requests that are in the view at their turn; skip later arrivals.

        A host may show only part of the waiting requests: vLLM skips those whose grammar is not
        ready.
        """
        newest, at = next(self._numbers), None
        while True:
            at = next(self._sorted.irange(at, None, (False, False)), None)
            if at is None:
                return
            if at[1] < newest and at[2] in view:
                yield at[2]


def least_first(view: WaitingView, key: Callable[[Request], Any]) -> Iterator[Request]:
    """Yield the currently waiting requests by key; equal keys go in queue order."""
    waiting = [(key(request), at, request) for at, request in enumerate(view.queue_order())]
    heapify(waiting)
    while waiting:
        yield heappop(waiting)[2]
