"""Credits that several D2LPM routers share: what each has charged, and the rounds of quanta."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fairbench.schedulers.peers.totals import Heard, Totals

ROUNDS = 0  # the place under which rounds of quanta are told, which are of no worker


class CreditNews(NamedTuple):
    """What has changed of a client: more rounds, and more charged by worker."""

    rounds: float
    charged: Mapping[int, float]


class SharedCredit:
    """A credit is rounds x quantum - charges, of which every router knows its own at once.

    Rounds are a level: two routers that grant the same round at the same time have granted it once.
    """

    def __init__(self) -> None:
        self.charged: dict[str, dict[int, float]] = {}  # by this router
        self.others = Heard()
        self._rounds: dict[str, float] = {}
        self._version = 0
        self.has_forgotten = False  # so that what is heard of a client may lack what came before

    def spend(self, client: str, worker: int, cost: float) -> None:
        """This router has charged the client, or given back."""
        of = self.charged.setdefault(client, {})
        of[worker] = of.get(worker, 0.0) + cost

    def grant(self, client: str, rounds: float) -> None:
        """This router has granted quanta."""
        self._rounds[client] = self._rounds.get(client, 0.0) + rounds

    def forget(self, client: str) -> None:
        """The client begins anew."""
        self.has_forgotten = True
        self.charged.pop(client, None)
        self._rounds.pop(client, None)

    def export(self) -> Totals:
        """What the other routers are to hear."""
        self._version += 1
        charged = {client: dict(of) for client, of in self.charged.items()}
        raised = {client: {ROUNDS: rounds} for client, rounds in self._rounds.items()}
        return Totals(self._version, charged, raised)

    def hear(self, origin: str, totals: Totals) -> dict[str, CreditNews]:
        """What is new in another router's totals, by client; nothing if they are not."""
        newly = self.others.newer(origin, totals)
        if newly is None:
            return {}
        found = {}
        for client in dict.fromkeys((*newly, *totals.raised)):
            rounds = totals.raised.get(client, {}).get(ROUNDS, 0.0)
            more = max(0.0, rounds - self._rounds.get(client, 0.0))
            if more:
                self._rounds[client] = rounds
            charged = newly.get(client, {})
            if more or any(charged.values()):  # else it would count as used just now
                found[client] = CreditNews(more, charged)
        return found
