"""The account that a scheduler's parameters ask for, flat or by a tree of tenants."""

from __future__ import annotations

from fairbench.schedulers.accounts.counters import Counters
from fairbench.schedulers.accounts.credits import Credits
from fairbench.schedulers.accounts.rejoin import RULES, Rejoin
from fairbench.schedulers.accounts.relaxed_turns import RelaxedTreeTurns, RelaxedTurns
from fairbench.schedulers.accounts.tree_counters import TreeCounters
from fairbench.schedulers.accounts.tree_credits import TreeCredits
from fairbench.schedulers.accounts.turns import TreeTurns, Turns
from fairbench.tenants import Tenants


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
