"""Virtual counters: the service of each client divided by its weight ([VTC] Alg. 2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice

from fairbench.schedulers.accounts.account import Account, Decoded
from fairbench.schedulers.setup import Setup
from fairbench.tenants import ROOT


class Counters(Account):
    """The counters c_i. The client with the lowest counter is served next; ties rotate.

    Args:
        output_weight: The price of an output token.
        lifts: Whether a returning client is lifted to the clients that wait (lines 11-13).
        lifts_alone: Whether it is lifted to the client that left the queue last if no client waits
            (lines 8-10).
    """

    def __init__(self, output_weight: int, *, lifts: bool = True, lifts_alone: bool = True) -> None:
        self.of: dict[str, float] = {}
        self.weights: Mapping[str, float] = {}
        self.lifts = lifts
        self.decoded = Decoded(self.of, output_weight)
        self._output_weight = output_weight
        self._lifts_alone = lifts_alone
        if not (lifts and lifts_alone):
            self.no_bound = "bounds no service difference in this form"
        self._left: dict[str, str] = {}  # tenant -> its node that left the queue last
        self._turn: dict[str, int] = {}  # when a node was last picked
        self._picks = 0

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self.weights = setup.weights

    def enter(self, client: str, waiting: Collection[str]) -> None:
        """Lift the counter of a client whose request arrives; ``waiting`` are the others."""
        counters = self.of
        for node in self.nodes(client):
            counters.setdefault(node, 0)
            tenant = self.tenant_of(node)
            siblings = self.siblings(tenant, waiting)
            if not self.lifts or node in siblings:
                continue
            self.decoded.settle((node,))
            own = counters[node]
            if siblings:
                self.decoded.settle(siblings)
                counters[node] = max(own, min(map(counters.__getitem__, siblings)))
            elif self._lifts_alone and (last := self._left.get(tenant)) is not None:
                self.decoded.settle((last,))
                counters[node] = max(own, counters[last])

    def least(self, waiting: Collection[str]) -> str:
        """Return the waiting client with the least counter (line 19)."""
        self.decoded.settle(waiting)
        counters = list(map(self.of.__getitem__, waiting))
        least = min(counters)
        if counters.count(least) == 1:
            return next(islice(waiting, counters.index(least), None))
        tied = [client for client in waiting if self.of[client] == least]
        return min(tied, key=lambda client: self._turn.get(client, -1))

    def picked(self, client: str) -> None:
        """Note that a request of the client has left the queue."""
        for node in self.nodes(client):
            self._left[self.tenant_of(node)] = node
            self._turn[node] = self._picks
        self._picks += 1

    @property
    def last_left(self) -> str | None:
        """The client, or the outermost tenant, that left the queue last."""
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
            self.decoded.on_steps(steps, running)
        else:  # fractions, for which the order of addition matters
            self.charge_each(each, steps, running)

    def forget(self, client: str) -> None:
        """Forget a client; it is lifted when it returns, or starts at 0 without lifts."""
        if client != self.last_left:
            self.decoded.forget(client)
            self.of.pop(client, None)
            self._turn.pop(client, None)

    def lead(self, node: str) -> float:
        self.decoded.settle((node,))
        return self.of.get(node, 0.0)

    def balances(self) -> dict[str, float]:
        self.decoded.settle_all()
        return self.of

    def replace(self, kept: dict[str, float]) -> None:
        """Store the counters in another mapping from now on, such as one shared with peers."""
        self.of = kept
        self.decoded = Decoded(kept, self._output_weight)
