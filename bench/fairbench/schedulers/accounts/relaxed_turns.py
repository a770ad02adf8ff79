"""Turns under ``refill=relaxed``: a client whose request did not fit does not hold up a refill."""

from __future__ import annotations

from collections.abc import Collection

from fairbench.schedulers.accounts.credits import Credits
from fairbench.schedulers.accounts.turns import MayRefill, TreeTurns, Turns
from fairbench.schedulers.views import WaitingView


class RelaxedTurns(Turns):
    """Clients that are stuck do not count as waiting, which breaks [DLPM] Theorem 4.1."""

    bounded = False

    def __init__(
        self, credits: Credits, view: WaitingView, may_refill: MayRefill, stops: bool = True
    ) -> None:
        super().__init__(credits, view, may_refill, stops)
        self._stuck: set[str] = set()

    def waiting(self) -> Collection[str]:
        return [client for client in self.view.clients() if client not in self._stuck]

    def no_room(self, client: str) -> bool:
        if not self.stops:
            self._stuck.add(client)
        return not self.stops


class RelaxedTreeTurns(RelaxedTurns, TreeTurns):
    """The same rule at every level of a tree of tenants."""
