"""Orders over a waiting queue. Scans are frozen for one admission pass; clients can be skipped."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush, heapreplace
from typing import Any, Generic

from fairbench.core import Prompt, Request
from fairbench.schedulers.prefix_tree import Place
from fairbench.sim.prefix_cache import N
from fairbench.sim.sequence import Sequence

DEPRIORITIZED, ARRIVED = 1, 2  # sort keys larger than every -matched
Order = tuple[int, int, "Entry[Any]"]  # (sort key, rank among equal keys, unique)


class Entry(Generic[N]):
    """A waiting request. ``key, rank`` is its position in the list that SGLang would sort."""

    __slots__ = (
        "admitted",
        "before",
        "dirty",
        "head",
        "key",
        "node",
        "number",
        "place",
        "placed",
        "prompt",
        "rank",
        "request",
        "sequence",
        "total",
    )

    def __init__(self, sequence: Sequence, number: int) -> None:
        self.sequence = sequence
        self.request = sequence.request
        self.prompt = sequence.prompt
        self.total = sequence.total
        self.number = number
        self.node: N | None = None
        self.place: Place = (0, 0)
        self.key, self.rank = ARRIVED, number
        self.before = (0, 0, 0)  # the number of a refresh, and the key and rank that it found
        self.head: Prompt | None = None  # its group, if it is cold
        self.dirty = True
        self.placed = False  # whether it is in the sorted list
        self.admitted = False

    @property
    def order(self) -> Order:
        """The position in the sorted list, built on demand, as a stored tuple would be a cycle."""
        return self.key, self.rank, self

    def touched_at(self, refresh: int) -> tuple[int, int]:
        moved_at, key, rank = self.before
        return (key, rank) if moved_at == refresh else (self.key, self.rank)

    @property
    def matched(self) -> int:
        """Return the cached tokens by which LPM sorts. Precondition: attached."""
        assert self.node is not None
        depth, most = self.node.depth, self.total - 1
        return depth if depth < most else most


class MatchOrder:
    """The sorted lists of the clients, and the sorted list of their heads.

    The first few requests are thus found without a scan of all clients. The lists are plain: moving
    the entries behind a position is one copy in C, which takes 2 us with ten thousand waiting
    requests, less than the calls of any structure that avoids it.
    """

    def __init__(self) -> None:
        self._lists: dict[str, list[Order]] = {}
        self._heads: list[Order] = []

    def add(self, order: Order) -> None:
        """Insert a request that has received its position in the order."""
        client = order[2].request.client
        mine = self._lists.get(client)
        if mine is None:
            self._lists[client] = [order]
            insort(self._heads, order)
        elif order < (head := mine[0]):
            del self._heads[bisect_left(self._heads, head)]
            insort(self._heads, order)
            mine.insert(0, order)
        else:
            insort(mine, order)

    def remove(self, order: Order) -> None:
        client = order[2].request.client
        mine, heads = self._lists[client], self._heads
        if mine[0] != order:
            del mine[bisect_left(mine, order)]
            return
        del mine[0], heads[bisect_left(heads, order)]
        if mine:
            insort(heads, mine[0])
        else:
            del self._lists[client]

    def heads(self) -> Iterator[Order]:
        """Return the first request of each client, in order."""
        return iter(self._heads)

    def of(self, client: str) -> Iterator[Order]:
        """Return a client's requests in order. The client must have a request."""
        return iter(self._lists[client])

    def beyond(self, client: str, at: Order | None) -> Iterator[Order]:
        """Return a client's requests after ``at`` in order, or all if ``at`` is None."""
        mine = self._lists[client]
        first = 0 if at is None else bisect_right(mine, at)
        return map(mine.__getitem__, range(first, len(mine)))


EVERYBODY: Mapping[str, float] = {}  # all clients are offered, at any credit


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
        # order of the first client that is not yet in the merge
        self._head = next(self._heads, None)
        self._merge: list[tuple[Order, str, Iterator[Order]]] = []
        self._skipped: set[str] = set()
        self._credit: Mapping[str, float] = EVERYBODY
        self._held: dict[str, None] = {}  # clients that were skipped and removed from the merge
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
                next(rest)  # the head of the merge
                self._join(client, rest)
                return head
            self._held[client] = None

    def _join(self, client: str, items: Iterator[Order]) -> None:
        if (first := next(items, None)) is not None:
            heappush(self._merge, (first, client, items))
