"""Whose turn it is in one pass over a queue: clients in credit, until all of them are in debt."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum, auto

from fairbench.schedulers.accounts.credits import Credits
from fairbench.schedulers.accounts.tree_credits import TreeCredits
from fairbench.schedulers.views import Scan, WaitingView
from fairbench.tenants import ROOT, parent_of

MayRefill = Callable[[WaitingView, str], bool]
"""Whether quanta are granted now to those below a tenant, of whom none that waits is in credit."""


class Turn(Enum):
    """What a pass does with a client's next request."""

    GO = auto()
    OTHERS = auto()  # are in credit, and go first
    IN_DEBT = auto()  # in spite of new quanta
    NOBODY = auto()  # goes: quanta are held back, and the pass is over


class Turns:
    """Lines 4-7 and 19-20 of [DLPM] Alg. 1 for one pass.

    Args:
        credits: The credits of all clients.
        view: The queue.
        may_refill: Whether quanta may be granted when nobody who waits is in credit.
    """

    def __init__(self, credits: Credits, view: WaitingView, may_refill: MayRefill) -> None:
        self.credits = credits
        self.view = view
        self.may_refill = may_refill
        self.blocked: set[str] = set()  # clients whose request did not fit, under refill=relaxed
        self._refilled = False
        self._known: bool | None = None  # whether someone who waits is in credit

    def of(self, client: str) -> Turn:
        """Return what to do with a request of this client; grants quanta where that is due."""
        if self.credits.of[client] <= 0:
            if self._known is None:
                self._known = self.someone_in_credit()
            if self._known:
                return Turn.OTHERS
            if not self.may_refill(self.view, ROOT):
                return Turn.NOBODY
            self._refilled = self.refill() or self._refilled
            self._known = None
            if self.credits.of[client] <= 0:
                return Turn.IN_DEBT
        self._known = None
        return Turn.GO

    def take_refilled(self) -> bool:
        """Tell whether quanta were granted since this was last asked."""
        refilled, self._refilled = self._refilled, False
        return refilled

    def someone_in_credit(self) -> bool:
        """Tell whether a client that waits is in credit."""
        of, blocked = self.credits.of, self.blocked
        return any(of[client] > 0 and client not in blocked for client in self.view.clients())

    def refill(self) -> bool:
        """Grant quanta until a client that waits is in credit; False if none waits."""
        return self.credits.refill(self.waiting())

    def waiting(self) -> Collection[str]:
        """Return the clients that wait and are not blocked."""
        return [client for client in self.view.clients() if client not in self.blocked]

    def pass_over(self, client: str, scan: Scan) -> None:
        """Leave out the client, and all others in debt, until somebody's credit has changed."""
        scan.skip(client)
        scan.skip_debtors(self.credits.of)

    def stand(self, client: str) -> bool:
        """Tell whether those passed over stay so, after it was this client's turn."""
        # Mostly it is the client itself, who has more requests and credit left.
        waits = client in self.view.clients() and client not in self.blocked
        return (waits and self.credits.of[client] > 0) or self.someone_in_credit()


class TreeTurns(Turns):
    """The same at every level of a tree of tenants."""

    credits: TreeCredits

    def __init__(self, credits: TreeCredits, view: WaitingView, may_refill: MayRefill) -> None:
        super().__init__(credits, view, may_refill)
        self._below: dict[
            str, bool
        ] = {}  # by tenant: whether someone in it that waits is in credit

    def of(self, client: str) -> Turn:
        for node in self.credits.nodes(client):
            if self.credits.of[node] > 0:
                continue
            tenant = parent_of(node)
            if tenant not in self._below:
                self._below[tenant] = self._someone_below(tenant)
            if self._below[tenant]:
                return Turn.OTHERS
            if not self.may_refill(self.view, tenant):
                return Turn.NOBODY if tenant == ROOT else Turn.OTHERS
            self._refilled = self._refill_below(tenant) or self._refilled
            self._below.clear()
            if self.credits.of[node] <= 0:
                return Turn.IN_DEBT
        self._below.clear()
        return Turn.GO

    def someone_in_credit(self) -> bool:
        return self._someone_below(ROOT)

    def _someone_below(self, tenant: str) -> bool:
        return self.credits.someone_in_credit(self.credits.siblings(tenant, self.waiting()))

    def refill(self) -> bool:
        return self._refill_below(ROOT)

    def _refill_below(self, tenant: str) -> bool:
        return self.credits.refill_below(tenant, self.waiting())

    def pass_over(self, client: str, scan: Scan) -> None:
        scan.skip(client)

    def stand(self, client: str) -> bool:
        return all(self._someone_below(parent_of(node)) for node in self.credits.nodes(client))
