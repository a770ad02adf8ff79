"""Credits that several D2LPM routers share: the charges of each router, and granted quanta."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fairbench.schedulers.peers.totals import Changes, Heard, Totals

ROUNDS = 0  # the place under which rounds of quanta are told, which are of no worker


class CreditChange(NamedTuple):
    """A change in a client's credit: more rounds, and more charges by worker."""

    rounds: float
    charged: Mapping[int, float]


class SharedCredit:
    """A credit (rounds x quantum - charges) of which each router knows its own part at once.

    Rounds are a level: two routers that grant the same round at the same time have granted it once.
    """

    def __init__(self) -> None:
        self.charged: dict[str, dict[int, float]] = {}  # by this router
        self.others = Heard()
        self._rounds: dict[str, float] = {}
        self._changes = Changes()
        self.has_forgotten = False  # so that what is heard of a client may lack what came before

    def spend(self, client: str, worker: int, cost: float) -> None:
        """Record that this router charged the client; a negative cost is a refund."""
        of = self.charged.setdefault(client, {})
        of[worker] = of.get(worker, 0.0) + cost
        self._changes.note(client)

    def grant(self, client: str, rounds: float) -> None:
        self._rounds[client] = self._rounds.get(client, 0.0) + rounds
        self._changes.note(client)

    def forget(self, client: str) -> None:
        """Forget the credit of a client, so that the client starts anew."""
        self.has_forgotten = True
        self.charged.pop(client, None)
        self._rounds.pop(client, None)
        self._changes.note(client)

    def export(self, since: int = 0) -> Totals:
        """Return the totals for the other routers, as in ``Exchanges``."""
        changed = self._changes.exported(since)
        if changed is None:
            since = 0
            charged = {client: dict(of) for client, of in self.charged.items()}
            raised = {client: {ROUNDS: rounds} for client, rounds in self._rounds.items()}
        else:
            charged = {client: dict(self.charged.get(client, {})) for client in changed}
            levels = {client: self._rounds.get(client) for client in changed}
            raised = {who: {} if to is None else {ROUNDS: to} for who, to in levels.items()}
        return Totals(self._changes.version, charged, raised, since=since)

    def hear(self, origin: str, totals: Totals) -> dict[str, CreditChange]:
        """Return the changes in another router's totals, by client; empty for stale totals."""
        newly = self.others.newer(origin, totals)
        if newly is None:
            return {}
        found = {}
        for client in dict.fromkeys((*totals.charged, *totals.raised)):
            rounds = totals.raised.get(client, {}).get(ROUNDS, 0.0)
            more = max(0.0, rounds - self._rounds.get(client, 0.0))
            if more:
                self._rounds[client] = rounds
                self._changes.note(client)  # which is told on
            charged = newly.get(client, {})
            if more or any(charged.values()):  # else it would count as used just now
                found[client] = CreditChange(more, charged)
        return found
