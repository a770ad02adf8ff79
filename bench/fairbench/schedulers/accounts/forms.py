"""Credits as a scheduler's parameters ask for them, flat or by a tree of tenants."""

from __future__ import annotations

from fairbench.schedulers.accounts.credits import Credits
from fairbench.schedulers.accounts.rejoin import RULES, Rejoin
from fairbench.schedulers.accounts.relaxed_turns import RelaxedTreeTurns, RelaxedTurns
from fairbench.schedulers.accounts.tree_credits import TreeCredits
from fairbench.schedulers.accounts.turns import TreeTurns, Turns
from fairbench.tenants import Tenants


def credits_of(
    quantum: float, output_weight: int, *, rejoin: Rejoin = "keep", tenants: Tenants | None = None
) -> Credits:
    """Return credits with this quantum, whose idle clients leave by the rule ``rejoin``."""
    form = Credits if tenants is None else TreeCredits
    return form(quantum, output_weight, RULES[rejoin]())


def turns_of(*, relaxed: bool, tenants: Tenants | None) -> type[Turns]:
    """Return the rule by which credits give turns in an admission pass."""
    if tenants is None:
        return RelaxedTurns if relaxed else Turns
    return RelaxedTreeTurns if relaxed else TreeTurns
