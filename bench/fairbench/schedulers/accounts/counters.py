"""Virtual counters: the service of each client divided by its weight ([VTC] Alg. 2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice

from fairbench.schedulers.accounts.account import Account, UnbookedTokens
from fairbench.schedulers.base import Setup
from fairbench.tenants import ROOT, Tenants


class Counters(Account):
    """Service counters of clients, c_i in [VTC] Alg. 2.

    The waiting client with the lowest counter is served next; clients with equal counters take
    turns. A tenant's counter is the sum of its clients' counters. The search for the next client
    descends the tree and takes the waiting node with the lowest counter at each level.

    Args:
        output_weight: The price of an output token.
        lifts: Whether a returning client's counter is lifted to the lowest counter of the waiting
            clients ([VTC] Alg. 2 lines 11-13).
        lifts_alone: Whether a client that returns to an empty queue gets at least the counter of
            the client that left the queue last ([VTC] Alg. 2 lines 8-10).
        tenants: Whether tenants have counters, too, at every level of the tree of tenants.
    """

    def __init__(
        self,
        output_weight: int,
        *,
        lifts: bool = True,
        lifts_alone: bool = True,
        tenants: Tenants | None = None,
    ) -> None:
        super().__init__(tenants)
        self.of: dict[str, float] = {}
        self.weights: Mapping[str, float] = {}
        self.lifts = lifts
        self.decoded = UnbookedTokens(self.of, output_weight)
        self._output_weight = output_weight
        self._lifts_alone = lifts_alone
        if not (lifts and lifts_alone):
            self.no_bound = "bounds no service difference in this form"
        # ``_left`` maps each tenant to its child node that left the queue last.
        self._left: dict[str, str] = {}
        # ``_turn`` maps each node to the number of the request for which the node was last chosen.
        self._turn: dict[str, int] = {}
        self._picks = 0

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self.weights = setup.weights

    def enter(self, client: str, waiting: Collection[str]) -> None:
        """Lift the counter of an arriving request's client ([VTC] Alg. 2 lines 6 to 13).

        Besides the clients ``waiting`` at this rank, clients that wait at other ranks are
        considered.
        """
        counters = self.of
        if self.elsewhere:
            waiting = {*waiting, *(one for one, waits in self.elsewhere.items() if waits)}
        for node in self.nodes(client):
            counters.setdefault(node, 0)
            tenant = self.tenant_of(node)
            siblings = self.siblings(tenant, waiting)
            if not self.lifts or node in siblings:
                continue
            self.decoded.book((node,))
            own = counters[node]
            if siblings:
                self.decoded.book(siblings)
                counters[node] = max(own, min(map(counters.__getitem__, siblings)))
            elif self._lifts_alone and (last := self._left.get(tenant)) is not None:
                self.decoded.book((last,))
                counters[node] = max(own, counters[last])

    def least(self, waiting: Collection[str]) -> str:
        """Return the waiting client with the lowest counter ([VTC] Alg. 2 line 19)."""
        tenant = ROOT
        while True:
            node = self._least_node(self.siblings(tenant, waiting))
            if not self.in_tree:
                return node
            waiting = [client for client in waiting if node in self.nodes(client)]
            client = waiting[0]
            if self.nodes(client)[-1] == node:
                return client
            tenant = node

    def _least_node(self, siblings: Collection[str]) -> str:
        self.decoded.book(siblings)
        counters = list(map(self.of.__getitem__, siblings))
        least = min(counters)
        if counters.count(least) == 1:
            return next(islice(siblings, counters.index(least), None))
        tied = [node for node in siblings if self.of[node] == least]
        return min(tied, key=lambda node: self._turn.get(node, -1))

    def picked(self, client: str) -> None:
        """Record that a request of the client has left the queue."""
        for node in self.nodes(client):
            self._left[self.tenant_of(node)] = node
            self._turn[node] = self._picks
        self._picks += 1

    @property
    def last_left(self) -> str | None:
        """The client (or its outermost tenant) whose request left the queue last."""
        return self._left.get(ROOT)

    @last_left.setter
    def last_left(self, client: str) -> None:
        self._left[ROOT] = client

    def charge(self, client: str, amount: float) -> None:
        for node in self.nodes(client):
            weight = self.weights.get(node, 1)
            self.of[node] += amount if weight == 1 else amount / weight

    def charge_steps(self, each: int, steps: int, running: Mapping[str, int]) -> None:
        if self.books_late and not (self.weights or self.shares):
            self.decoded.count_steps(steps, running)
        else:
            # Fractional charges are added immediately, because rounding makes their sum depend on
            # the order of the additions.
            self.charge_each(each, steps, running)

    def forget(self, client: str) -> None:
        """Delete a client's counter; a returning client's counter starts at 0 and may be lifted.

        Counters in a tree of tenants are never deleted.
        """
        if client != self.last_left and not self.in_tree:
            self.decoded.forget(client)
            self.of.pop(client, None)
            self._turn.pop(client, None)

    def lead(self, node: str) -> float:
        self.decoded.book((node,))
        return self.of.get(node, 0.0)

    def balances(self) -> dict[str, float]:
        self.decoded.book_all()
        return self.of

    def replace(self, kept: dict[str, float]) -> None:
        """Keep the counters in the mapping ``kept``, which several routers may share."""
        self.of = kept
        self.decoded = UnbookedTokens(kept, self._output_weight)
