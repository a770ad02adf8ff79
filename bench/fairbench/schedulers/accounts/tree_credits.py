"""Deficit credits at every level of a tree of tenants, such as ``org/team/user``."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fairbench.schedulers.accounts.account import SIBLINGS
from fairbench.schedulers.accounts.credits import Credits
from fairbench.tenants import parent_of


class TreeCredits(Credits):
    """Credits of tenants and clients. A client may spend only if all of its tenants may spend.

    What is charged to a client is charged to its tenants as well, and quanta are granted among the
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
