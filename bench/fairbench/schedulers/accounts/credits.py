"""Deficit credits: how much each client may still spend before the other clients get their turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Literal

from fairbench.schedulers.accounts.account import Account, Decoded, rounds_to_credit

Rejoin = Literal["keep", "min0", "paper_zero"]
"""Rules by which idle clients leave the client list and come back.

``keep``: they leave once they are in credit, and a debt is never erased. ``min0``: they leave
immediately; a debt is kept, and a credit is forgotten. ``paper_zero``: they leave immediately;
both are forgotten, and no theorem holds.
"""


class Credits(Account):
    """The credits q_i and the client list l of [DLPM] Alg. 1, refilled in quanta.

    A client joins the list with its first request (line 12). An idle client leaves the list by a
    rule of ``rejoin``. The ``quantum`` Q^u applies to a client of weight 1, in weighted tokens.
    """

    def __init__(self, quantum: float, output_weight: int, rejoin: Rejoin = "keep") -> None:
        self.quantum = quantum
        self.rejoin = rejoin
        if rejoin == "paper_zero":
            self.no_bound = "bounds no service difference in this form"
        self.of: dict[str, float] = {}  # q_i; its keys are the client list l
        self._debts: dict[str, float] = {}  # balances of clients off the list
        self.requests: Counter[str] = Counter()  # requests of each client: waiting or running
        self.decoded = Decoded(self.of, -output_weight)

    def enter(self, client: str) -> None:
        """Count a request that has arrived, and add its client to the list (line 12)."""
        for node in self.nodes(client):
            self.requests[node] += 1
            if node not in self.of:
                self.join(node)

    def leave(self, client: str) -> None:
        """Count a request that has finished; a client that is now idle may leave the list."""
        for node in self.nodes(client):
            self.requests[node] -= 1
            if not self.requests[node]:
                self.let_go(node)
                del self.requests[node]

    def forget(self, client: str) -> None:
        """Forget the debt of a client; a client without debt has already left."""
        if client not in self.requests:  # otherwise it is also a tenant of other clients
            self.decoded.forget(client)
            self.of.pop(client, None)
            self._debts.pop(client, None)

    def charge(self, client: str, amount: float) -> None:
        for node in self.nodes(client):
            self.of[node] -= amount

    def charge_absent(self, client: str, amount: float) -> None:
        for node in self.nodes(client):
            self.join(node)
            self.of[node] -= amount
            self.let_go(node)

    def charge_steps(self, each: int, steps: int, running: Mapping[str, int]) -> None:
        if self.books_late and not (self.setup.weights or self.shares):
            self.decoded.on_steps(steps, running)
        else:  # fractions, for which the order of addition matters
            self.charge_each(each, steps, running)

    def refund(self, client: str, amount: float) -> None:
        """Refund an advance charge, without lifting a credit above a quantum."""
        for node in self.nodes(client):
            credit = self.of[node]
            self.of[node] = max(credit, min(credit + amount, self.quantum_of(node)))

    def in_credit(self, client: str) -> bool:
        return self.of[client] > 0

    def members(self, tenant: str) -> dict[str, float]:
        """Return the credits of all nodes below a tenant, after all decoded tokens are booked."""
        return self.balances()

    def refill(self, tenant: str, clients: Collection[str]) -> bool:
        """Repeat lines 6-7 below a tenant until a waiting node is in credit; False if none waits.

        ``clients`` are the waiting clients. The rounds are summed in closed form.
        """
        waiting = self.siblings(tenant, clients)
        if not waiting:
            return False
        members = self.members(tenant)
        rounds = min(rounds_to_credit(self.of[c], self.quantum_of(c)) for c in waiting)
        for client in list(members):
            if (credit := self.of[client]) <= 0:
                quantum = self.quantum_of(client)
                self.of[client] += min(rounds, rounds_to_credit(credit, quantum)) * quantum
                self.let_go(client)
        return True

    def quantum_of(self, client: str) -> float:
        """Return the client's quantum (by its weight) in the unit of the charges."""
        # The quantum is not rounded: quanta out of proportion would let clients drift apart without
        # limit.
        quantum = self.quantum * self.setup.weight(client)
        return quantum if self.unit_of_time is None else quantum * self.unit_of_time()

    def join(self, client: str) -> None:
        """Put a client on the list, unless it is there."""
        if client not in self.of:
            self.of[client] = self._debts.pop(client, 0)

    def let_go(self, client: str) -> None:
        """Remove an idle client from the list, by the rule of ``rejoin``."""
        if self.requests[client]:
            return
        self.decoded.settle((client,))
        if self.rejoin == "keep" and self.of[client] <= 0:
            return
        credit = self.of.pop(client)
        if self.rejoin == "min0" and credit < 0:
            self._debts[client] = credit

    def lead(self, node: str) -> float:
        self.decoded.settle((node,))
        return -self.of.get(node, 0.0) / self.quantum_of(node)

    def balances(self) -> dict[str, float]:
        self.decoded.settle_all()
        return self.of
