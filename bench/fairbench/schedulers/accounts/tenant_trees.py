"""Accounts at every level of a tree of tenants, and the choice between flat accounts and these."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fairbench.schedulers.accounts.account import SIBLINGS
from fairbench.schedulers.accounts.counters import Counters
from fairbench.schedulers.accounts.credits import Credits
from fairbench.schedulers.accounts.turns import RelaxedTurns, Turns
from fairbench.schedulers.accounts.worker_credits import WorkerCredits
from fairbench.schedulers.base import Scan
from fairbench.tenants import ROOT, Tenants, parent_of


class TreeCounters(Counters):
    """The counters of tenants and clients. A tenant's counter sums all clients below the tenant.

    The next client is found from the top: at each level, the waiting node with the least counter is
    chosen, with ties in rotation. A returning node is lifted among its siblings as VTC lifts a
    client: to the least counter of those that wait, or to the node that left last. With client
    names without separators this account equals VTC's.
    """

    no_bound = SIBLINGS

    def __init__(self, output_weight: int, *, lifts: bool = True, lifts_alone: bool = True) -> None:
        super().__init__(output_weight, lifts=lifts, lifts_alone=lifts_alone)
        self._left: dict[str, str] = {}  # tenant -> its child that left the queue last

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
        """Keep the client, because its service is part of its tenants' service."""

    def charge_steps(self, each: int, steps: int, running: Mapping[str, int]) -> None:
        self.charge_each(each, steps, running)


class TreeCredits(Credits):
    """Credits of tenants and clients. A client may spend only if all of its tenants may spend.

    Charges to a client are charged to its tenants as well, and quanta are granted among the
    siblings below one tenant.
    """

    no_bound = SIBLINGS

    def nodes(self, client: str) -> tuple[str, ...]:
        """Return the client's tenants from the outermost to the innermost, then the client."""
        return self.setup.lineage(client)

    def enter(self, client: str) -> None:
        for node in self.nodes(client):
            super().enter(node)

    def leave(self, client: str) -> None:
        for node in self.nodes(client):
            super().leave(node)

    def charge(self, client: str, amount: float) -> None:
        for node in self.nodes(client):
            self.of[node] -= amount

    def charge_absent(self, client: str, amount: float) -> None:
        for node in self.nodes(client):
            self.join(node)
            self.of[node] -= amount
            self.let_go(node)

    def charge_steps(self, each: int, steps: int, running: Mapping[str, int]) -> None:
        self.charge_each(each, steps, running)

    def refund(self, client: str, amount: float) -> None:
        for node in self.nodes(client):
            super().refund(node, amount)

    def in_credit(self, client: str) -> bool:
        return all(self.of[node] > 0 for node in self.nodes(client))

    def siblings(self, tenant: str, clients: Collection[str]) -> Collection[str]:
        return self.setup.children_of(tenant, clients)

    def members(self, tenant: str) -> dict[str, float]:
        return {node: left for node, left in self.of.items() if parent_of(node) == tenant}

    def refill_below(self, tenant: str, clients: Collection[str]) -> bool:
        """Refill the nodes below a tenant; ``clients`` are the waiting clients."""
        return self.refill_some(self.siblings(tenant, clients), self.members(tenant))


@dataclass
class TreeTurns(Turns):
    """CHECKREFILL at every level of a tree of tenants."""

    credits: TreeCredits
    # tenant -> whether a waiting client is in credit
    _below: dict[str, bool] = field(default_factory=dict)

    def may_go(self, client: str, scan: Scan) -> bool:
        for node in self.credits.nodes(client):
            if self.credits.of[node] > 0:
                continue
            tenant = parent_of(node)
            if tenant not in self._below:
                self._below[tenant] = self._someone_below(tenant)
            if self._below[tenant]:
                scan.skip(client)
                return False
            if not self.may_refill(self.view, tenant):
                self.over = tenant == ROOT
                scan.skip(client)
                return False
            self._refilled = self._refill_below(tenant) or self._refilled
            self._below.clear()
            if self.credits.of[node] <= 0:
                return False
        self._below.clear()
        return True

    def someone_in_credit(self) -> bool:
        return self._someone_below(ROOT)

    def _someone_below(self, tenant: str) -> bool:
        return self.credits.someone_in_credit(self.credits.siblings(tenant, self.waiting()))

    def refill(self) -> bool:
        return self._refill_below(ROOT)

    def _refill_below(self, tenant: str) -> bool:
        return self.credits.refill_below(tenant, self.waiting())

    def _still_in_credit(self, client: str) -> bool:
        return all(self._someone_below(parent_of(node)) for node in self.credits.nodes(client))


@dataclass
class RelaxedTreeTurns(RelaxedTurns, TreeTurns):
    """Relaxed turns at every level of a tree of tenants."""


class TreeWorkerCredits(WorkerCredits):
    """Credits of tenants and clients.

    A worker is open if all tenants of a client may spend there.
    """

    def nodes(self, client: str) -> tuple[str, ...]:
        return self.setup.lineage(client)


COUNTERS: Mapping[Tenants | None, type[Counters]] = {None: Counters, "tree": TreeCounters}
CREDITS: Mapping[Tenants | None, type[Credits]] = {None: Credits, "tree": TreeCredits}
WORKER_CREDITS: Mapping[Tenants | None, type[WorkerCredits]] = {
    None: WorkerCredits,
    "tree": TreeWorkerCredits,
}
TURNS: Mapping[Tenants | None, type[Turns]] = {None: Turns, "tree": TreeTurns}
RELAXED_TURNS: Mapping[Tenants | None, type[Turns]] = {None: RelaxedTurns, "tree": RelaxedTreeTurns}
"""The forms of each account by the parameter ``tenants``: flat, or at every level of the tree."""
