"""The account that a scheduler's parameters ask for, flat or by a tree of tenants."""

from __future__ import annotations

from collections.abc import Collection

from fairbench.schedulers.accounts.counters import Counters
from fairbench.schedulers.accounts.credits import Credits
from fairbench.schedulers.accounts.rejoin import RULES, Rejoin
from fairbench.schedulers.accounts.tree_counters import TreeCounters
from fairbench.schedulers.accounts.tree_credits import TreeCredits
from fairbench.schedulers.accounts.turns import MayRefill, TreeTurns, Turns
from fairbench.schedulers.views import WaitingView
from fairbench.tenants import Tenants


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


def credits_of(
    quantum: float, output_weight: int, *, rejoin: Rejoin = "keep", tenants: Tenants | None = None
) -> Credits:
    """Return credits with this quantum, for which idle clients leave by the rule ``rejoin``."""
    form = Credits if tenants is None else TreeCredits
    return form(quantum, output_weight, RULES[rejoin]())


def counters_of(
    output_weight: int, *, lifts: bool = True, lifts_alone: bool = True, tenants: Tenants | None
) -> Counters:
    """Return counters whose clients are lifted as ``Counters`` says."""
    form = Counters if tenants is None else TreeCounters
    return form(output_weight, lifts=lifts, lifts_alone=lifts_alone)


def turns_of(*, relaxed: bool, tenants: Tenants | None) -> type[Turns]:
    """Return the rule by which credits give turns in a pass."""
    if tenants is None:
        return RelaxedTurns if relaxed else Turns
    return RelaxedTreeTurns if relaxed else TreeTurns
