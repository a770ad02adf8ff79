"""Orders over a waiting queue, frozen for one admission pass, with clients that can be skipped."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Any

from sortedcontainers import SortedList

from fairbench.core import Request

if TYPE_CHECKING:
    from fairbench.sim.engine.waiting_entry import Entry, Order


class QueueScan:
    """Waiting requests in queue order."""

    def __init__(self, entries: Iterator[Entry[Any]]) -> None:
        self._entries = entries
        self._skipped: set[str] = set()

    def __iter__(self) -> Iterator[Request]:
        return self

    def __next__(self) -> Request:
        for entry in self._entries:
            if not entry.admitted and entry.request.client not in self._skipped:
                return entry.request
        raise StopIteration

    def skip(self, client: str) -> None:
        self._skipped.add(client)

    def unskip_all(self) -> None:
        self._skipped.clear()


class MatchScan:
    """Waiting requests in match order: the clients' sorted lists, merged."""

    def __init__(self, ordered: dict[str, SortedList]) -> None:
        self._lists = ordered
        self._skipped: set[str] = set()
        self._held: dict[str, None] = {}  # skipped and taken out of the merge
        self._at: Order | None = None
        self._merge: list[tuple[Order, str, Iterator[Order]]] = []
        for client, items in ordered.items():
            self._join(client, iter(items))
        heapify(self._merge)

    def __iter__(self) -> Iterator[Request]:
        return self

    def __next__(self) -> Request:
        while self._merge:
            order, client, rest = self._merge[0]
            if client in self._skipped:
                heappop(self._merge)
                self._held[client] = None
                continue
            if (following := next(rest, None)) is None:
                heappop(self._merge)
            else:
                heapreplace(self._merge, (following, client, rest))
            self._at = order
            if not order[2].admitted:
                return order[2].request
        raise StopIteration

    def skip(self, client: str) -> None:
        self._skipped.add(client)

    def unskip_all(self) -> None:
        self._skipped.clear()
        if not self._held:
            return
        for client in self._held:
            self._join(client, self._lists[client].irange(self._at, None, (False, True)))
        self._held.clear()
        heapify(self._merge)

    def _join(self, client: str, items: Iterator[Order]) -> None:
        if (first := next(items, None)) is not None:
            self._merge.append((first, client, items))
