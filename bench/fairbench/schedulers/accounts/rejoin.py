"""Rules for when an idle client leaves the client list ([DLPM] Alg. 1 never removes one)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Rejoin = Literal["keep", "min0", "paper_zero"]


@dataclass(slots=True)
class KeepDebtors:
    """A rule under which an idle client leaves once it is in credit. Leaving erases no debt."""

    bounded = True

    def leaves(self, client: str, credit: float) -> bool:
        """Return whether an idle client with this credit leaves the list."""
        return credit > 0

    def returns(self, client: str) -> float:
        """Return the credit with which a client joins the list."""
        return 0

    def forget(self, client: str) -> None:
        """Forget what is remembered of a client off the list."""


@dataclass(slots=True)
class RememberDebts(KeepDebtors):
    """A rule under which an idle client leaves at once.

    Its debt is kept, its credit is forgotten.
    """

    _debts: dict[str, float] = field(default_factory=dict)

    def leaves(self, client: str, credit: float) -> bool:
        if credit < 0:
            self._debts[client] = credit
        return True

    def returns(self, client: str) -> float:
        return self._debts.pop(client, 0)

    def forget(self, client: str) -> None:
        self._debts.pop(client, None)


@dataclass(slots=True)
class ForgetAll(KeepDebtors):
    """A rule under which an idle client leaves at once; credit and debt are forgotten.

    No theorem holds.
    """

    bounded = False

    def leaves(self, client: str, credit: float) -> bool:
        return True


RULES: Mapping[Rejoin, type[KeepDebtors]] = {
    "keep": KeepDebtors,
    "min0": RememberDebts,
    "paper_zero": ForgetAll,
}
