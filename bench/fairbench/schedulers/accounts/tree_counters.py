"""Virtual counters at every level of a tree of tenants, with VTC's rules among siblings."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fairbench.schedulers.accounts.account import SIBLINGS
from fairbench.schedulers.accounts.counters import Counters
from fairbench.tenants import ROOT, Tenants, parent_of


class TreeCounters(Counters):
    """The counters of tenants and clients. A tenant's counter sums all clients below the tenant.

    The next client is found from the top: at each level the waiting node with the least counter,
    ties in rotation. A node that comes back is lifted among its siblings as VTC lifts a client: to
    the least that waits, or to the one that left last. Of names without separators this is VTC.
    """

    no_bound = SIBLINGS

    def __init__(self, output_weight: int, *, lifts: bool = True, lifts_alone: bool = True) -> None:
        super().__init__(output_weight, lifts=lifts, lifts_alone=lifts_alone)
        self._left: dict[str, str] = {}  # by tenant: its child that left the queue last

    def enter(self, client: str, waiting: Collection[str]) -> None:
        counters = self.of
        for node in self.setup.lineage(client):
            tenant = parent_of(node)
            own = counters.setdefault(node, 0)
            siblings = self.setup.children_of(tenant, waiting)
            if not self.lifts or node in siblings:
                continue
            if siblings:
                counters[node] = max(own, min(counters[other] for other in siblings))
            elif tenant in self._left:
                counters[node] = max(own, counters[self._left[tenant]])

    def least(self, waiting: Collection[str]) -> str:
        tenant, within = ROOT, list(waiting)
        while True:
            node = min(
                self.setup.children_of(tenant, within),
                key=lambda one: (self.of[one], self._turn.get(one, -1)),
            )
            within = [one for one in within if node in self.setup.lineage(one)]
            if self.setup.lineage(within[0])[-1] == node:
                return within[0]
            tenant = node

    def picked(self, client: str) -> None:
        for node in self.setup.lineage(client):
            self._left[parent_of(node)] = node
            self._turn[node] = self._picks
        self._picks += 1

    def charge(self, client: str, amount: float) -> None:
        for node in self.setup.lineage(client):
            super().charge(node, amount)

    def forget(self, client: str) -> None:
        """Keep the client, as a part of what its tenants have had."""

    def charge_steps(self, each: int, steps: int, running: Mapping[str, int]) -> None:
        self.charge_each(each, steps, running)


def counters_of(
    output_weight: int, *, lifts: bool = True, lifts_alone: bool = True, tenants: Tenants | None
) -> Counters:
    """Return counters whose clients are lifted as ``Counters`` describes.

    Args:
        output_weight: Price of an output token.
        lifts: Whether a client that comes back is lifted to those that wait.
        lifts_alone: Whether a client is lifted to the client that left the queue last if nobody
            waits.
        tenants: Tenants whose levels have counters, or None for clients only.
    """
    form = Counters if tenants is None else TreeCounters
    return form(output_weight, lifts=lifts, lifts_alone=lifts_alone)
