"""Waiting requests by match, of each client apart, and whose first comes first."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedList

from fairbench.sim.engine.waiting_entry import Order


class MatchOrder:
    """The clients' sorted lists, and of them the heads, sorted.

    So nobody has to look at a thousand clients to find the first few requests of all.
    """

    def __init__(self) -> None:
        self._lists: dict[str, SortedList] = {}
        self._heads = SortedList()

    def add(self, order: Order) -> None:
        """A request has got its place."""
        client = order[2].request.client
        mine = self._lists.get(client)
        if mine is None:
            mine = self._lists[client] = SortedList()
        elif order < (head := mine[0]):
            self._heads.remove(head)
        else:
            mine.add(order)
            return
        mine.add(order)
        self._heads.add(order)

    def remove(self, order: Order) -> None:
        """It leaves its place."""
        client = order[2].request.client
        mine = self._lists[client]
        is_head = mine[0] == order
        mine.remove(order)
        if is_head:
            self._heads.remove(order)
            if mine:
                self._heads.add(mine[0])
            else:
                del self._lists[client]

    def heads(self) -> Iterator[Order]:
        """The first of each client, in order."""
        return iter(self._heads)

    def of(self, client: str) -> Iterator[Order]:
        """Those of a client, in order; not called for one who has none."""
        return iter(self._lists[client])

    def beyond(self, client: str, at: Order | None) -> Iterator[Order]:
        """Those of a client behind a place, all without one."""
        orders: Iterator[Order] = self._lists[client].irange(at, None, (False, True))
        return orders
