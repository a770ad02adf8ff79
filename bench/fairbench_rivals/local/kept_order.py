"""A collection of waiting requests that stays sorted by a key."""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import count
from typing import Any

from sortedcontainers import SortedList

from fairbench.core import Request


class KeptOrder:
    """A sorted collection of requests; requests with equal keys are in order of insertion.

    Inserting, removing and finding the next candidate take O(log n) time. A ``KeptOrder`` suits a
    long queue if each pass tries only a few of its requests; ``least_first`` would examine all
    requests of the queue.
    """

    def __init__(self) -> None:
        # entries (sort key, insertion number, request), in ascending order
        self._sorted = SortedList()
        self._entries: dict[Request, tuple[Any, int, Request]] = {}
        self._numbers = count()

    def put_request(self, request: Request, key: Any) -> None:
        """Insert a request, or move it to a new key, behind all requests with an equal key."""
        self.drop_request(request)
        entry = key, next(self._numbers), request
        self._entries[request] = entry
        self._sorted.add(entry)

    def drop_request(self, request: Request) -> None:
        """Remove a request, if the collection contains it."""
        entry = self._entries.pop(request, None)
        if entry is not None:
            self._sorted.remove(entry)

    def within(self, view: Container[Request]) -> Iterator[Request]:
        """Yield the requests in order, except those that ``view`` lacks when their turn comes.

        A host may show only a part of the waiting requests: vLLM hides requests whose grammar is
        not ready.
        """
        newest, at = next(self._numbers), None
        while True:
            at = next(self._sorted.irange(at, None, (False, False)), None)
            if at is None:
                return
            if at[1] < newest and at[2] in view:
                yield at[2]
