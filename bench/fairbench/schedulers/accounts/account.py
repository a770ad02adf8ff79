"""The interface of an account: one number for each client, in weighted tokens or picoseconds.

Decode steps are booked late (``Decoded``), when a scheduler asks for a client's balance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from fairbench.schedulers.setup import Setup
from fairbench.tenants import ROOT


@dataclass(slots=True)
class Decoded:
    """A buffer that adds ``each`` per decoded token to a client's entry in ``sums`` when needed.

    This needs sums of whole numbers, which do not depend on the time. Otherwise every step would
    update the whole batch, although only few of its clients also wait. ``changed`` are the clients
    with events, as in ``LocalScheduler.on_steps``.
    """

    sums: dict[str, float]
    each: int
    changed: set[str] = field(default_factory=set)
    _steps: int = 0
    _requests: dict[str, int] = field(
        default_factory=dict
    )  # client -> number of its running requests
    _booked: dict[str, int] = field(default_factory=dict)  # the step up to which tokens are booked

    def on_steps(self, steps: int, running: Mapping[str, int]) -> None:
        if self.changed:
            self.settle(self.changed)
            for client in self.changed:
                if client in running:
                    self._requests[client], self._booked[client] = running[client], self._steps
                else:
                    self._requests.pop(client, None)
            self.changed.clear()
        self._steps += steps

    def settle(self, clients: Collection[str]) -> None:
        """Book the tokens that these clients have decoded until now."""
        steps, requests, booked, sums = self._steps, self._requests, self._booked, self.sums
        for client in requests.keys() & clients:
            if (since := booked[client]) != steps:
                sums[client] += self.each * requests[client] * (steps - since)
                booked[client] = steps

    def settle_all(self) -> None:
        self.settle(self._requests)

    def forget(self, client: str) -> None:
        """Remove a client that has no running requests."""
        self.settle((client,))
        self.changed.discard(client)
        self._requests.pop(client, None)
        self._booked.pop(client, None)


class Account(ABC):
    """The balances of all clients.

    A policy asks for balances, a charging changes them. Tokens of decode steps may be booked late.
    Every method that returns or compares balances books them first, so policies need not know.
    """

    setup = Setup()
    decoded: Decoded
    shares = False  # charges may be fractions of a token
    # returns the time of a token, if time is charged
    unit_of_time: Callable[[], float] | None = None
    no_bound = ""  # why no theorem bounds the accounted service, such as "bounds ..."
    books_late = True  # whether decode steps may be booked late

    def prepare(self, setup: Setup) -> None:
        """Receive the facts of the experiment, including weights, before the first request."""
        self.setup = setup

    def nodes(self, client: str) -> tuple[str, ...]:
        """Return the nodes that a charge to the client is booked to: the client alone."""
        return (client,)

    def tenant_of(self, node: str) -> str:
        """Return the tenant directly above a node."""
        return ROOT

    def siblings(self, tenant: str, clients: Collection[str]) -> Collection[str]:
        """Return the nodes directly below a tenant that lead to these clients."""
        return clients

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
        """Charge the decode steps of a whole batch at once, client by client."""
        for client, requests in running.items():
            self.charge(client, each * steps * requests)

    def running_changed(self, client: str) -> None:
        """Note that the client's number of running requests may have changed."""
        self.decoded.changed.add(client)

    def settle(self, clients: Collection[str]) -> None:
        """Book the tokens that these clients have decoded until now."""
        self.decoded.settle(clients)

    def forget(self, client: str) -> None:
        """Forget a client without requests; by default its balance is kept."""

    def ahead(self, client: str) -> tuple[float, ...]:
        """Return how far the client is ahead of others, by the nodes of its charges."""
        return tuple(self.lead(node) for node in self.nodes(client))

    @abstractmethod
    def lead(self, node: str) -> float:
        """Return a number that is the larger the further a node is ahead of its siblings."""

    @abstractmethod
    def balances(self) -> dict[str, float]:
        """Return the balance of every client, after all decoded tokens are booked."""


def rounds_to_credit(credit: float, quantum: float) -> float:
    """Return the fewest quanta that lift a credit of at most 0 above 0."""
    rounds = -credit // quantum + 1
    # A weighted quantum may not be a whole number, and quotients of such numbers are rounded.
    return rounds if rounds * quantum > -credit else rounds + 1
