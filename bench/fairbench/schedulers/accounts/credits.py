"""Deficit credits: how much each client may still spend before the other clients get their turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fairbench.schedulers.accounts.account import Account, Decoded, rounds_to_credit

Rejoin = Literal["keep", "min0", "paper_zero"]


@dataclass(slots=True)
class KeepDebtors:
    """A rule under which an idle client leaves once it is in credit. Leaving erases no debt."""

    bounded = True

    def leaves(self, client: str, credit: float) -> bool:
        """Return whether an idle client with this credit leaves the list."""
        return credit > 0

    def returns(self, client: str) -> float:
        """Return the credit with which a client joins the list."""
        return 0

    def forget(self, client: str) -> None:
        """Forget what is remembered of a client off the list."""


@dataclass(slots=True)
class RememberDebts(KeepDebtors):
    """A rule under which an idle client leaves at once.

    Its debt is kept, its credit is forgotten.
    """

    _debts: dict[str, float] = field(default_factory=dict)

    def leaves(self, client: str, credit: float) -> bool:
        if credit < 0:
            self._debts[client] = credit
        return True

    def returns(self, client: str) -> float:
        return self._debts.pop(client, 0)

    def forget(self, client: str) -> None:
        self._debts.pop(client, None)


@dataclass(slots=True)
class ForgetAll(KeepDebtors):
    """A rule under which an idle client leaves at once; credit and debt are forgotten.

    No theorem holds.
    """

    bounded = False

    def leaves(self, client: str, credit: float) -> bool:
        return True


RULES: Mapping[Rejoin, type[KeepDebtors]] = {
    "keep": KeepDebtors,
    "min0": RememberDebts,
    "paper_zero": ForgetAll,
}


class Credits(Account):
    """The credits q_i and the client list l of [DLPM] Alg. 1, refilled in quanta.

    A client joins the list with its first request (line 12). An idle client leaves the list by a
    rule of ``rejoin``.

    Args:
        quantum: The quantum Q^u of a client of weight 1, in weighted tokens.
        output_weight: The price of an output token.
        rejoin: The rule by which idle clients leave and come back.
    """

    def __init__(
        self, quantum: float, output_weight: int, rejoin: KeepDebtors | None = None
    ) -> None:
        self.quantum = quantum
        self.rejoin = rejoin or KeepDebtors()
        if not self.rejoin.bounded:
            self.no_bound = "bounds no service difference in this form"
        self.of: dict[str, float] = {}  # q_i; its keys are the client list l
        self.requests: Counter[str] = Counter()  # of each client: waiting or running
        self.decoded = Decoded(self.of, -output_weight)

    def enter(self, client: str) -> None:
        """Count a request that has arrived, and add its client to the list (line 12)."""
        self.requests[client] += 1
        if client not in self.of:
            self.join(client)

    def leave(self, client: str) -> None:
        """Count a request that has finished; a client that is now idle may leave the list."""
        self.requests[client] -= 1
        if not self.requests[client]:
            self.let_go(client)
            del self.requests[client]

    def forget(self, client: str) -> None:
        """Forget the debt of a client; one without debt has left already."""
        if client not in self.requests:  # else it is a tenant of others, too
            self.decoded.forget(client)
            self.of.pop(client, None)
            self.rejoin.forget(client)

    def charge(self, client: str, amount: float) -> None:
        self.of[client] -= amount

    def charge_absent(self, client: str, amount: float) -> None:
        self.join(client)
        self.of[client] -= amount
        self.let_go(client)

    def charge_steps(self, each: int, steps: int, running: Mapping[str, int]) -> None:
        if self.setup.weights or self.shares:  # fractions, whose sums depend on the order
            self.charge_each(each, steps, running)
        else:
            self.decoded.on_steps(steps, running)

    def refund(self, client: str, amount: float) -> None:
        """Refund an advance charge, which never lifts a credit above a quantum."""
        credit = self.of[client]
        self.of[client] = max(credit, min(credit + amount, self.quantum_of(client)))

    def in_credit(self, client: str) -> bool:
        """Return whether a client may spend."""
        return self.of[client] > 0

    def siblings(self, tenant: str, clients: Collection[str]) -> Collection[str]:
        """Return the nodes on the list directly below a tenant that lead to these clients."""
        return clients

    def members(self, tenant: str) -> dict[str, float]:
        """Return the credits of all nodes below a tenant, after all decoded tokens are booked."""
        return self.balances()

    def someone_in_credit(self, clients: Collection[str]) -> bool:
        """Return whether one of these clients may spend (line 4)."""
        return any(self.of[client] > 0 for client in clients)

    def refill(self, waiting: Collection[str]) -> bool:
        """Repeat lines 6-7 in closed form until a waiting client is in credit; False if none."""
        return self.refill_some(waiting, self.of)

    def refill_some(self, waiting: Collection[str], members: Collection[str]) -> bool:
        """Refill the members in debt, of whom some are waiting."""
        if not waiting:
            return False
        self.decoded.settle_all()
        rounds = min(rounds_to_credit(self.of[c], self.quantum_of(c)) for c in waiting)
        for client in list(members):
            if (credit := self.of[client]) <= 0:
                quantum = self.quantum_of(client)
                self.of[client] += min(rounds, rounds_to_credit(credit, quantum)) * quantum
                self.let_go(client)
        return True

    def quantum_of(self, client: str) -> float:
        """Return the client's quantum (by its weight) in the unit of the charges."""
        # Not rounded: quanta out of proportion would let clients drift apart without limit.
        quantum = self.quantum * self.setup.weight(client)
        return quantum if self.unit_of_time is None else quantum * self.unit_of_time()

    def join(self, client: str) -> None:
        """Put a client on the list, unless it is there."""
        if client not in self.of:
            self.of[client] = self.rejoin.returns(client)

    def let_go(self, client: str) -> None:
        """Remove an idle client from the list, by the rule of ``rejoin``."""
        if self.requests[client]:
            return
        self.decoded.settle((client,))
        if self.rejoin.leaves(client, self.of[client]):
            del self.of[client]

    def balances(self) -> dict[str, float]:
        self.decoded.settle_all()
        return self.of
