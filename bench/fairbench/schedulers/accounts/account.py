"""The interface of an account: one number for each client, in weighted tokens or picoseconds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

from fairbench.schedulers.accounts.decoded import Decoded
from fairbench.schedulers.setup import Setup

SIBLINGS = "bounds the difference of siblings among its tenants"


class Account(ABC):
    """The balances of all clients.

    A policy asks for balances, a charging changes them. Tokens of decode steps may be booked late:
    ``settle`` books them for the clients whose balances are about to be read.
    """

    setup = Setup()
    decoded: Decoded  # ``changed`` are the clients whose number of running requests may be another
    shares = False  # charges may be parts of a token
    no_bound = ""  # why no theorem bounds what is accounted for, such as "bounds ..."

    def prepare(self, setup: Setup) -> None:
        """Take the facts of the experiment, weights among them, before the first request."""
        self.setup = setup

    @abstractmethod
    def charge(self, client: str, amount: float) -> None:
        """Charge a client that has requests here; a negative amount is a refund."""

    def charge_absent(self, client: str, amount: float) -> None:
        """Charge a client that may have no request here, such as one that shares a prefix."""
        self.charge(client, amount)

    def refund(self, client: str, amount: float) -> None:
        """Refund an amount that was charged in advance."""
        self.charge(client, -amount)

    @abstractmethod
    def charge_steps(self, each: int, steps: int, running: Mapping[str, int]) -> None:
        """Charge the decode steps of a whole batch, later if that does not change the sum.

        Args:
            each: The price of one token.
            steps: How many steps every running request has made.
            running: The number of running requests by client.
        """

    def charge_each(self, each: int, steps: int, running: Mapping[str, int]) -> None:
        """Charge the decode steps of a whole batch at once, client by client.

        Args:
            each: Price of one token.
            steps: Number of steps that every running request has made.
            running: Number of running requests by client.
        """
        for client, requests in running.items():
            self.charge(client, each * steps * requests)

    def settle(self, clients: Collection[str]) -> None:
        """Book the tokens that these clients have decoded until now."""
        self.decoded.settle(clients)

    def forget(self, client: str) -> None:
        """Forget a client without requests; by default its balance is kept."""

    @abstractmethod
    def balances(self) -> dict[str, float]:
        """Return the balance of every client, after all decoded tokens are booked."""
