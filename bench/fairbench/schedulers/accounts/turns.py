"""Turns in one pass over a queue: clients in credit go until all waiting ones are in debt."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from fairbench.schedulers.accounts.credits import Credits
from fairbench.schedulers.views import Scan, WaitingView
from fairbench.tenants import ROOT

MayRefill = Callable[[WaitingView, str], bool]
"""Returns whether to grant quanta now, below a tenant without a waiting client in credit."""


@dataclass
class Turns:
    """CHECKREFILL of [DLPM] Alg. 1 (lines 3-8) for one pass.

    ``may_refill`` returns whether quanta may be granted when no waiting client is in credit;
    ``over`` is set when they are refused, which ends the pass. With ``stops`` the first request
    without room ends it, too.
    """

    bounded = True
    credits: Credits
    view: WaitingView
    may_refill: MayRefill
    stops: bool = True
    over: bool = False
    _refilled: bool = False
    _known: bool | None = None  # whether a waiting client is in credit

    def __post_init__(self) -> None:
        self.credits.settle(self.view.clients())

    def check_refill(self, client: str, scan: Scan) -> None:
        """Grant quanta for a client in debt, unless a waiting client is in credit.

        A client that is in debt while others are not is left out of the ``scan``.
        """
        if self._known is None:
            self._known = self.someone_in_credit()
        if self._known:  # line 5
            self._pass_over(client, scan)
        elif not self.may_refill(self.view, ROOT):
            self.over = True
        else:
            self._refilled = self.refill() or self._refilled  # lines 6-7
            self._known = None

    def take_refilled(self) -> bool:
        """Return whether quanta were granted since the last call."""
        refilled, self._refilled = self._refilled, False
        return refilled

    def waiting(self) -> Collection[str]:
        return self.view.clients()

    def someone_in_credit(self, tenant: str = ROOT) -> bool:
        """Return whether a waiting client below a tenant is in credit (lines 4-5)."""
        of, siblings = self.credits.of, self.credits.siblings(tenant, self.waiting())
        return any(of[client] > 0 for client in siblings)

    def refill(self, tenant: str = ROOT) -> bool:
        """Grant quanta until a waiting client is in credit; return False if no client waits."""
        return self.credits.refill(tenant, self.waiting())

    def ends_without_room(self, client: str) -> bool:
        """Return whether the pass ends after the client's request did not fit."""
        return self.stops

    def tried(self, client: str, scan: Scan) -> None:
        """After a client's turn, offer the skipped clients again if no client is in credit now."""
        self._known = None
        if not self._still_in_credit(client):
            scan.unskip_all()

    def _still_in_credit(self, client: str) -> bool:
        # Usually the client itself is in credit, with more requests.
        waits = client in self.waiting()
        return (waits and self.credits.of[client] > 0) or self.someone_in_credit()

    def _pass_over(self, client: str, scan: Scan) -> None:
        """Skip the client, and all other clients in debt, until some credit has changed."""
        scan.skip(client)
        scan.skip_debtors(self.credits.of)


@dataclass
class RelaxedTurns(Turns):
    """Turns in which clients whose request does not fit do not count as waiting.

    This breaks [DLPM] Theorem 4.1.
    """

    bounded = False
    _stuck: set[str] = field(default_factory=set)

    def waiting(self) -> Collection[str]:
        return [client for client in self.view.clients() if client not in self._stuck]

    def ends_without_room(self, client: str) -> bool:
        if not self.stops:
            self._stuck.add(client)
        return self.stops
