"""The interface of accounts: each client's balance, in weighted tokens or picoseconds.

To save time, decoded tokens are added to balances only when a scheduler reads them
(``UnbookedTokens``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from fairbench.schedulers.base import Setup
from fairbench.tenants import ROOT, Tenants, parent_of


@dataclass(slots=True)
class UnbookedTokens:
    """A buffer of decoded tokens; a token adds the price ``each`` to its client's balance.

    Buffering decoded tokens saves balance updates, because a scheduler compares only the balances
    of clients with waiting requests. ``changed`` holds the clients whose number of running requests
    may have changed.
    """

    sums: dict[str, float]
    each: int
    changed: set[str] = field(default_factory=set)
    _steps: int = 0
    _requests: dict[str, int] = field(default_factory=dict)
    # ``_booked`` maps each client to the last decode step that its balance includes.
    _booked: dict[str, int] = field(default_factory=dict)

    def count_steps(self, steps: int, running: Mapping[str, int]) -> None:
        if self.changed:
            self.book(self.changed)
            for client in self.changed:
                if client in running:
                    self._requests[client], self._booked[client] = running[client], self._steps
                else:
                    self._requests.pop(client, None)
            self.changed.clear()
        self._steps += steps

    def book(self, clients: Collection[str]) -> None:
        """Add the buffered output tokens of the given clients to the clients' balances."""
        steps, requests, booked, sums = self._steps, self._requests, self._booked, self.sums
        for client in requests.keys() & clients:
            if (since := booked[client]) != steps:
                sums[client] += self.each * requests[client] * (steps - since)
                booked[client] = steps

    def book_all(self) -> None:
        self.book(self._requests)

    def forget(self, client: str) -> None:
        self.book((client,))
        self.changed.discard(client)
        self._requests.pop(client, None)
        self._booked.pop(client, None)


class Account(ABC):
    """The balances of all clients, or of all nodes of a tree of tenants.

    A charge to a client is added to each of the client's ``nodes``. Without ``tenants``, a client's
    only node is the client itself. Decoded tokens may stay in the buffer ``decoded`` for some
    steps. Every method that returns or compares balances first adds the buffered tokens.
    """

    setup = Setup()
    decoded: UnbookedTokens
    # If ``shares`` is true, clients share the charge for a token, and may pay fractions of it.
    shares = False
    # ``unit_of_time`` returns the GPU time (ps) that counts as a token, or is None for token
    # counts.
    unit_of_time: Callable[[], float] | None = None
    # ``no_bound`` is the reason why no theorem bounds the service gap under this account. It is
    # empty if a theorem does.
    no_bound = ""
    # If ``books_late`` is true, decoded tokens may wait in the buffer ``decoded`` for some decode
    # steps before their clients are charged.
    books_late = True
    # The keys of ``elsewhere`` are the clients with requests at other ranks of a server. A client's
    # value in ``elsewhere`` is true if a request of the client waits at another rank.
    elsewhere: Mapping[str, bool] = {}

    def __init__(self, tenants: Tenants | None = None) -> None:
        self.in_tree = tenants is not None
        if self.in_tree:
            self.books_late = False
            self.no_bound = "bounds the difference of siblings among its tenants"

    def prepare(self, setup: Setup) -> None:
        """Receive the facts about the experiment before the first request."""
        self.setup = setup

    def nodes(self, client: str) -> tuple[str, ...]:
        """Return a client's path in the tenant tree: outermost tenant first, client last."""
        return self.setup.lineage(client) if self.in_tree else (client,)

    def tenant_of(self, node: str) -> str:
        """Return the tenant directly above a node."""
        return parent_of(node) if self.in_tree else ROOT

    def siblings(self, tenant: str, clients: Collection[str]) -> Collection[str]:
        """Return a tenant's children that are, or contain, one of the given clients."""
        return self.setup.children_of(tenant, clients) if self.in_tree else clients

    @abstractmethod
    def charge(self, client: str, amount: float) -> None:
        """Charge a client that has requests at this worker; a negative amount is a refund."""

    def charge_absent(self, client: str, amount: float) -> None:
        """Charge a client that may have no request at this worker, such as a prefix's owner."""
        self.charge(client, amount)

    def refund(self, client: str, amount: float) -> None:
        """Refund a charge that was made in advance."""
        self.charge(client, -amount)

    @abstractmethod
    def charge_steps(self, each: int, steps: int, running: Mapping[str, int]) -> None:
        """Charge the batch's clients for decode steps, at once or through the buffer ``decoded``.

        Args:
            each: The price of one output token.
            steps: The number of decode steps, in each of which a running request gets one token.
            running: The number of running requests by client.
        """

    def charge_each(self, each: int, steps: int, running: Mapping[str, int]) -> None:
        """Charge the decode steps of a whole batch at once."""
        for client, requests in running.items():
            self.charge(client, each * steps * requests)

    def running_changed(self, client: str) -> None:
        """Record that the client's number of running requests may have changed."""
        self.decoded.changed.add(client)

    def book_decoded(self, clients: Collection[str]) -> None:
        """Add the output tokens of the given clients to their balances."""
        self.decoded.book(clients)

    def forget(self, client: str) -> None:
        """Delete the state of a client without requests; by default, keep its balance."""

    def ahead(self, client: str) -> tuple[float, ...]:
        """Return the service leads of a client's tenants (outermost first) and of the client."""
        return tuple(self.lead(node) for node in self.nodes(client))

    @abstractmethod
    def lead(self, node: str) -> float:
        """Return a measure of a node's past service, to be compared with sibling nodes only."""

    @abstractmethod
    def balances(self) -> dict[str, float]:
        """Return every client's balance, including all decoded tokens."""


def rounds_to_credit(credit: float, quantum: float) -> float:
    """Return the smallest number of quanta after which ``credit``, now at most 0, is above 0."""
    rounds = -credit // quantum + 1
    # With a fractional quantum, rounding errors may make ``rounds`` one too low.
    return rounds if rounds * quantum > -credit else rounds + 1
