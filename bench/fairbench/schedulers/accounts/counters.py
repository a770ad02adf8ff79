"""Virtual counters: the service of each client divided by its weight ([VTC] Alg. 2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice

from fairbench.schedulers.accounts.account import Account, Decoded
from fairbench.schedulers.setup import Setup


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
        self.last_left: str | None = None
        self.lifts = lifts
        self.decoded = Decoded(self.of, output_weight)
        self._output_weight = output_weight
        self._lifts_alone = lifts_alone
        if not (lifts and lifts_alone):
            self.no_bound = "bounds no service difference in this form"
        self._turn: dict[str, int] = {}  # when a client was last picked
        self._picks = 0

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self.weights = setup.weights

    def enter(self, client: str, waiting: Collection[str]) -> None:
        """Lift the counter of a client whose request arrives; ``waiting`` are the others."""
        counters = self.of
        counters.setdefault(client, 0)
        if not self.lifts or client in waiting:
            return
        self.decoded.settle((client,))
        own = counters[client]
        if waiting:
            self.decoded.settle(waiting)
            counters[client] = max(own, min(map(counters.__getitem__, waiting)))
        elif self.last_left is not None and self._lifts_alone:
            self.decoded.settle((self.last_left,))
            counters[client] = max(own, counters[self.last_left])

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
        self.last_left = client
        self._turn[client] = self._picks
        self._picks += 1

    def charge(self, client: str, amount: float) -> None:
        weight = self.weights.get(client, 1)
        self.of[client] += amount if weight == 1 else amount / weight

    def charge_steps(self, each: int, steps: int, running: Mapping[str, int]) -> None:
        if self.weights or self.shares:  # fractions, for which the order of addition matters
            self.charge_each(each, steps, running)
        else:
            self.decoded.on_steps(steps, running)

    def forget(self, client: str) -> None:
        """Forget a client; it is lifted when it returns, or starts at 0 without lifts."""
        if client != self.last_left:
            self.decoded.forget(client)
            self.of.pop(client, None)
            self._turn.pop(client, None)

    def balances(self) -> dict[str, float]:
        self.decoded.settle_all()
        return self.of

    def replace(self, kept: dict[str, float]) -> None:
        """Store the counters in another mapping from now on, such as one shared with peers."""
        self.of = kept
        self.decoded = Decoded(kept, self._output_weight)
