"""Credits of deficit round robin: each turn grants a quantum to a client that is not in credit."""

from __future__ import annotations

from collections.abc import Mapping

from fairbench.schedulers.accounts.account import Account, Decoded

POOL_SHARES = 20  # a quantum is the KV pool over this
QUANTUM_ANYWHERE = 10_000  # where the pool is not known, as at a gateway


class TurnCredits(Account):
    """The credits of clients. A client is granted a quantum when its turn begins.

    Args:
        quantum: The quantum of a client of weight 1, in weighted tokens; 0 is a 20th of the pool.
        output_weight: The price of an output token.
    """

    def __init__(self, quantum: float, output_weight: int) -> None:
        self.of: dict[str, float] = {}
        self.decoded = Decoded(self.of, -output_weight)
        self._quantum = quantum

    def quantum_of(self, client: str) -> float:
        """Return the client's quantum (by its weight) in the unit of the charges."""
        pool = self.setup.pool_tokens
        usual = pool / POOL_SHARES if pool else QUANTUM_ANYWHERE
        quantum = (self._quantum or usual) * self.setup.weight(client)
        return quantum if self.unit_of_time is None else quantum * self.unit_of_time()

    def begin_turn(self, client: str) -> None:
        """Grant a quantum to a client that is not in credit."""
        if self.of[client] <= 0:
            self.of[client] += self.quantum_of(client)

    def charge(self, client: str, amount: float) -> None:
        self.of[client] -= amount

    def charge_absent(self, client: str, amount: float) -> None:
        self.of[client] = self.of.get(client, 0) - amount

    def refund(self, client: str, amount: float) -> None:
        credit = self.of[client]
        self.of[client] = min(credit + amount, max(credit, self.quantum_of(client)))

    def charge_steps(self, each: int, steps: int, running: Mapping[str, int]) -> None:
        # At once: quanta may be fractions, whose sums depend on the order.
        of, price = self.of, each * steps
        for client, requests in running.items():
            of[client] -= price * requests

    def forget(self, client: str) -> None:
        """Forget the debt or credit of a client."""
        self.decoded.forget(client)
        self.of.pop(client, None)

    def balances(self) -> dict[str, float]:
        return self.of
