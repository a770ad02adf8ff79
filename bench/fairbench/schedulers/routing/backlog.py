"""A worker's backlog: the unfinished work of each client, and how fair sharing divides it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection
from itertools import accumulate
from typing import NamedTuple

from fairbench.tenants import lineage, parent_of


class _Sums(NamedTuple):
    """Clients sorted by work over weight, with prefix sums."""

    levels: list[float]
    work: list[int]
    weight: list[float]


class Backlog:
    """Unfinished work at one worker. ``weight(client)`` is the client's entitlement."""

    def __init__(self, weight: Callable[[str], float]) -> None:
        self._weight = weight
        self._of_client: dict[str, int] = {}
        self._of_request: dict[int, tuple[str, int]] = {}
        self._sums: _Sums | None = None  # None means that something has changed

    def work(self, client: str) -> int:
        return self._of_client.get(client, 0)

    def clients(self) -> Collection[str]:
        return self._of_client.keys()

    def add(self, request_id: int, client: str, work: int) -> None:
        """Add the work of a request that has arrived, in tokens of prefill."""
        self._of_request[request_id] = client, work
        self._of_client[client] = self.work(client) + work
        self._sums = None

    def remove(self, request_id: int) -> None:
        """Remove exactly the work that a finished request added."""
        client, work = self._of_request.pop(request_id)
        self._of_client[client] -= work
        if not self._of_client[client]:
            del self._of_client[client]
        self._sums = None

    def reweigh(self) -> None:
        """Discard the cached sums, because weights have changed."""
        self._sums = None

    def finish(self, client: str, work: int) -> float:
        """Return when ``work`` more of a client would end under fair sharing from now on.

        The client has x = its backlog + ``work`` to complete. Meanwhile each other client j is
        served in proportion to its weight, up to its whole backlog: x + sum of min(backlog_j, x
        weight_j / weight). The cost is O(log clients), and O(clients log clients) for the first
        call after a change.
        """
        return self.until(client, self.work(client) + work)

    def until(self, client: str, done: float) -> float:
        """Return the total work done when fair sharing has done ``done`` for the client."""
        mine, weight = self.work(client), self._weight(client)
        level = done / weight
        sums = self._sums = self._sums or self._summed()
        below = bisect_right(sums.levels, level)
        done_by_then, not_done = sums.work[below], sums.weight[-1] - sums.weight[below]
        if mine / weight <= level:
            done_by_then -= mine  # the client's own backlog is among them
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


class TenantBacklog:
    """A ``Backlog`` in which each node shares its tenant's part with its siblings."""

    def __init__(
        self, weight: Callable[[str], float], lineage: Callable[[str], tuple[str, ...]] = lineage
    ) -> None:
        self._weight, self._lineage = weight, lineage
        self._below: dict[str, Backlog] = {}  # backlogs by tenant, of the nodes in it
        self._nodes: dict[int, tuple[str, ...]] = {}  # request -> its path in the tree

    def _among(self, node: str) -> Backlog:
        tenant = parent_of(node)
        if tenant not in self._below:
            self._below[tenant] = Backlog(self._weight)
        return self._below[tenant]

    def add(self, request_id: int, client: str, work: int) -> None:
        self._nodes[request_id] = self._lineage(client)
        for node in self._lineage(client):
            self._among(node).add(request_id, node, work)

    def remove(self, request_id: int) -> None:
        for node in self._nodes.pop(request_id):
            self._among(node).remove(request_id)

    def reweigh(self) -> None:
        for backlog in self._below.values():
            backlog.reweigh()

    def finish(self, client: str, work: int) -> float:
        """Return when ``work`` more of a client would end under fair sharing from now on.

        The work of a tenant's clients that is done by then is the work that the tenant needs until
        then.
        """
        *tenants, leaf = self._lineage(client)
        done = self._among(leaf).finish(leaf, work)
        for tenant in reversed(tenants):
            done = self._among(tenant).until(tenant, done)
        return done
