"""Virtual counters at every level of a tree of tenants: VTC's rules, among siblings."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fairbench.schedulers.setup import Setup
from fairbench.tenants import ROOT, parent_of


class TenantCounters:
    """What each node was served, over its weight; a node's service is that of all clients in it.

    The next client is found from the top: at each level the waiting node with the least counter,
    ties in rotation. A node that comes back is lifted among its siblings as VTC lifts a client: to
    the least that waits, or to the one that left last. Of names without separators this is VTC.
    """

    def __init__(self, counters: dict[str, float]) -> None:
        self.setup = Setup()
        self._counters = counters  # of tenants and clients
        self._last_left: dict[str, str] = {}  # by tenant: its child that left the queue last
        self._turn: dict[str, int] = {}
        self._picks = 0

    def enter(self, client: str, waiting: Collection[str], lift: bool) -> None:
        """A request comes; ``waiting`` are the clients that wait without it."""
        counters = self._counters
        for node in self.setup.lineage(client):
            tenant = parent_of(node)
            own = counters.setdefault(node, 0)
            siblings = self.setup.children_of(tenant, waiting)
            if not lift or node in siblings:
                continue
            if siblings:
                counters[node] = max(own, min(counters[other] for other in siblings))
            elif tenant in self._last_left:
                counters[node] = max(own, counters[self._last_left[tenant]])

    def least(self, waiting: Collection[str]) -> str:
        """Whose turn it is. Precondition: somebody waits."""
        tenant, within = ROOT, list(waiting)
        while True:
            node = min(
                self.setup.children_of(tenant, within),
                key=lambda one: (self._counters[one], self._turn.get(one, -1)),
            )
            within = [one for one in within if node in self.setup.lineage(one)]
            if self.setup.lineage(within[0])[-1] == node:
                return within[0]
            tenant = node

    def picked(self, client: str) -> None:
        """A request of the client has left the queue."""
        for node in self.setup.lineage(client):
            self._last_left[parent_of(node)] = node
            self._turn[node] = self._picks
        self._picks += 1

    def charge(self, client: str, service: float, weights: Mapping[str, float]) -> None:
        """Book a client's service at every level."""
        for node in self.setup.lineage(client):
            weight = weights.get(node, 1)
            self._counters[node] += service if weight == 1 else service / weight
