"""Accounts at every level of a tree of tenants, and the choice between flat accounts and these."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fairbench.schedulers.accounts.account import Account
from fairbench.schedulers.accounts.counters import Counters
from fairbench.schedulers.accounts.credits import Credits
from fairbench.schedulers.accounts.turns import RelaxedTurns, Turns
from fairbench.schedulers.accounts.worker_credits import WorkerCredits
from fairbench.schedulers.base import Scan
from fairbench.tenants import ROOT, Tenants, parent_of


class Levels(Account):
    """An account of tenants and clients: a charge to a client is also booked to its tenants."""

    no_bound = "bounds the difference of siblings among its tenants"
    books_late = False

    def nodes(self, client: str) -> tuple[str, ...]:
        """Return the client's tenants from the outermost to the innermost, then the client."""
        return self.setup.lineage(client)

    def tenant_of(self, node: str) -> str:
        return parent_of(node)

    def siblings(self, tenant: str, clients: Collection[str]) -> Collection[str]:
        return self.setup.children_of(tenant, clients)


class TreeCounters(Levels, Counters):
    """The counters of tenants and clients. A tenant's counter sums all clients below the tenant.

    The next client is found from the top: at each level, the waiting node with the least counter is
    chosen, with ties in rotation. A returning node is lifted among its siblings as VTC lifts a
    client: to the least counter of those that wait, or to the node that left last. With client
    names without separators this account equals VTC's.
    """

    def least(self, waiting: Collection[str]) -> str:
        tenant, within = ROOT, list(waiting)
        while True:
            node = min(
                self.siblings(tenant, within),
                key=lambda one: (self.of[one], self._turn.get(one, -1)),
            )
            within = [one for one in within if node in self.nodes(one)]
            if self.nodes(within[0])[-1] == node:
                return within[0]
            tenant = node

    def forget(self, client: str) -> None:
        """Keep the client, because its service is part of its tenants' service."""


class TreeCredits(Levels, Credits):
    """Credits of tenants and clients. A client may spend only if all of its tenants may spend.

    Quanta are granted among the siblings below one tenant.
    """

    def in_credit(self, client: str) -> bool:
        return all(self.of[node] > 0 for node in self.nodes(client))

    def members(self, tenant: str) -> dict[str, float]:
        return {node: left for node, left in self.of.items() if parent_of(node) == tenant}


@dataclass
class TreeTurns(Turns):
    """CHECKREFILL at every level of a tree of tenants."""

    # tenant -> whether a waiting client is in credit
    _below: dict[str, bool] = field(default_factory=dict)

    def check_refill(self, client: str, scan: Scan) -> None:
        for node in self.credits.nodes(client):
            if self.credits.of[node] > 0:
                continue
            tenant = parent_of(node)
            if tenant not in self._below:
                self._below[tenant] = self.someone_in_credit(tenant)
            if self._below[tenant]:
                scan.skip(client)
                return
            if not self.may_refill(self.view, tenant):
                self.over = tenant == ROOT
                scan.skip(client)
                return
            self._refilled = self.refill(tenant) or self._refilled
            self._below.clear()
            if self.credits.of[node] <= 0:
                return

    def tried(self, client: str, scan: Scan) -> None:
        self._below.clear()
        super().tried(client, scan)

    def _still_in_credit(self, client: str) -> bool:
        return all(self.someone_in_credit(parent_of(node)) for node in self.credits.nodes(client))


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
