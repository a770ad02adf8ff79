"""Orders over a waiting queue, frozen for one admission pass; clients can be skipped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any

from fairbench.core import Request

if TYPE_CHECKING:
    from fairbench.sim.engine.match_order import MatchOrder
    from fairbench.sim.engine.waiting_entry import Entry, Order

EVERYBODY: Mapping[str, float] = {}  # is offered, whatever credits are


class QueueScan:
    """Waiting requests in queue order."""

    def __init__(self, entries: Iterator[Entry[Any]]) -> None:
        self._entries = entries
        self._skipped: set[str] = set()
        self._credit: Mapping[str, float] = EVERYBODY

    def __iter__(self) -> Iterator[Request]:
        return self

    def __next__(self) -> Request:
        for entry in self._entries:
            client = entry.request.client
            if entry.admitted or client in self._skipped:
                continue
            if self._credit is EVERYBODY or self._credit[client] > 0:
                return entry.request
            self._skipped.add(client)
        raise StopIteration

    def skip(self, client: str) -> None:
        self._skipped.add(client)

    def skip_debtors(self, credit: Mapping[str, float]) -> None:
        self._credit = credit

    def unskip_all(self) -> None:
        self._skipped.clear()
        self._credit = EVERYBODY


class MatchScan:
    """Waiting requests in match order: the clients' lists, merged only as far as needed."""

    def __init__(self, ordered: MatchOrder) -> None:
        self._ordered = ordered
        self._heads = ordered.heads()
        self._head = next(self._heads, None)  # of the first client that is not yet in the merge
        self._merge: list[tuple[Order, str, Iterator[Order]]] = []
        self._skipped: set[str] = set()
        self._credit: Mapping[str, float] = EVERYBODY
        self._held: dict[str, None] = {}  # skipped and taken out of the merge
        self._at: Order | None = None

    def __iter__(self) -> Iterator[Request]:
        return self

    def __next__(self) -> Request:
        while (order := self._following()) is not None:
            self._at = order
            if not order[2].admitted:
                return order[2].request
        raise StopIteration

    def skip(self, client: str) -> None:
        self._skipped.add(client)

    def skip_debtors(self, credit: Mapping[str, float]) -> None:
        self._credit = credit

    def unskip_all(self) -> None:
        self._skipped.clear()
        self._credit = EVERYBODY
        if not self._held:
            return
        for client in self._held:
            self._join(client, self._ordered.beyond(client, self._at))
        self._held.clear()

    def _following(self) -> Order | None:
        """Return the next request of all clients that are not skipped."""
        merge, skipped, credit = self._merge, self._skipped, self._credit
        while True:
            head = self._head
            if merge and (head is None or merge[0][0] < head):
                order, client, rest = merge[0]
                if client in skipped or (credit is not EVERYBODY and credit[client] <= 0):
                    heappop(merge)
                    self._held[client] = None
                    continue
                if (following := next(rest, None)) is None:
                    heappop(merge)
                else:
                    heapreplace(merge, (following, client, rest))
                return order
            if head is None:
                return None
            client = head[2].request.client
            self._head = next(self._heads, None)
            if client not in skipped and (credit is EVERYBODY or credit[client] > 0):
                rest = self._ordered.of(client)
                next(rest)  # which is the head
                self._join(client, rest)
                return head
            self._held[client] = None

    def _join(self, client: str, items: Iterator[Order]) -> None:
        if (first := next(items, None)) is not None:
            heappush(self._merge, (first, client, items))
