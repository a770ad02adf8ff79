"""A worker's backlog: the work that each client has under way there, and how it would be shared."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection
from itertools import accumulate
from typing import NamedTuple


class _Sums(NamedTuple):
    """Clients by their work over their weight, ascending, and sums over the first so many."""

    levels: list[float]
    work: list[int]
    weight: list[float]


class Backlog:
    """Work under way at one worker. ``weight(client)`` is what a client is entitled to."""

    def __init__(self, weight: Callable[[str], float]) -> None:
        self._weight = weight
        self._of_client: dict[str, int] = {}
        self._of_request: dict[int, tuple[str, int]] = {}
        self._sums: _Sums | None = None  # None: something has changed

    def work(self, client: str) -> int:
        """What this client has under way."""
        return self._of_client.get(client, 0)

    def clients(self) -> Collection[str]:
        """Whose work is under way."""
        return self._of_client.keys()

    def add(self, request_id: int, client: str, work: int) -> None:
        """A request has come."""
        self._of_request[request_id] = client, work
        self._of_client[client] = self.work(client) + work
        self._sums = None

    def remove(self, request_id: int) -> None:
        """It is over: just what it added is gone."""
        client, work = self._of_request.pop(request_id)
        self._of_client[client] -= work
        if not self._of_client[client]:
            del self._of_client[client]
        self._sums = None

    def reweigh(self) -> None:
        """What clients are entitled to has changed."""
        self._sums = None

    def finish(self, client: str, work: int) -> float:
        """When so much more work of a client would be done, were it shared fairly, from now on.

        The client has x = its backlog + ``work`` to be done; meanwhile each other one j gets what
        its weight entitles it to, or all that it has: x + sum of min(backlog_j, x weight_j /
        weight). O(log clients), and O(clients log clients) the first time after a change.
        """
        return self.until(client, self.work(client) + work)

    def until(self, client: str, done: float) -> float:
        """How much is done in all when so much of the client's is, were it shared fairly."""
        mine, weight = self.work(client), self._weight(client)
        level = done / weight
        sums = self._sums = self._sums or self._summed()
        below = bisect_right(sums.levels, level)
        done_by_then, not_done = sums.work[below], sums.weight[-1] - sums.weight[below]
        if mine / weight <= level:
            done_by_then -= mine  # its own backlog is among them
        else:
            not_done -= weight
        return done + done_by_then + level * not_done

    def _summed(self) -> _Sums:
        weights = {client: self._weight(client) for client in self._of_client}
        rows = sorted((work / weights[c], work, weights[c]) for c, work in self._of_client.items())
        return _Sums(
            [level for level, _, _ in rows],
            list(accumulate((work for _, work, _ in rows), initial=0)),
            list(accumulate((weight for _, _, weight in rows), initial=0.0)),
        )
