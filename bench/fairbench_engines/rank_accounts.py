"""Accounts that count the charges of all data-parallel ranks of a server.

Each data-parallel rank has its own queue and scheduler. Ranks exchange totals of their charges
(``Totals``), and no rank waits for another rank.

With R ranks, the service of two clients that wait at all ranks differs by at most 2(R U + Q + S).
In this bound, U limits the cost of a client's running requests at a rank, and Q is the quantum (0
for VTC). S is the largest sum of a client's charges that other ranks have not yet sent to a rank.
[DLPM] Theorem 5.1 has the bound 2 R (U + Q) for separate credits. Two rules replace R Q by Q + S:

- Each rank serves the waiting client with the lowest counter, or a waiting client with positive
  credit, according to the charges that the rank has received. The charges that the rank has not yet
  received from other ranks are at most S, and the client's running requests add at most U at each
  rank.
- At a refill, all waiting clients get the same number of quanta. Rounds of quanta that several
  ranks grant at the same time count as one round.

An idle client loses its positive credit at the rank that first finds the client idle at all ranks.
Each rank publishes the credit that clients have lost, so that all ranks subtract the same credit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import Any

from fairbench.errors import UsageError
from fairbench.schedulers.accounts.counters import Counters
from fairbench.schedulers.accounts.deficit_credits import HERE, Credits
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.peers import (
    Changes,
    Heard,
    SharedCounters,
    SharedCredit,
    Terms,
    Totals,
    shares_counters,
)

NO_LEAD = Terms(ahead_tok_s=0.0, forget_s=inf)


class RankAccount(ABC):
    """The account of a rank's scheduler, which includes the charges of all other ranks."""

    def __init__(self) -> None:
        self._elsewhere: Mapping[str, bool] = {}

    def merge_ranks(
        self, told: Mapping[str, Totals], elsewhere: Mapping[str, bool], now_s: float
    ) -> None:
        """Merge the new totals of charges that other ranks have published.

        Args:
            told: Totals by the rank that published them; the totals may arrive late, repeatedly or
                out of order.
            elsewhere: For each client with requests at other ranks, whether such a request is
                queued.
            now_s: The time in seconds on the host's clock.
        """
        # Clients with new charges count as busy, so the account keeps them until the charges apply.
        busy = dict(self._elsewhere)
        for totals in told.values():
            busy |= dict.fromkeys((*totals.charged, *totals.raised), False)
        self._look_elsewhere({**busy, **elsewhere})
        for origin, totals in told.items():
            self._merge(origin, totals, now_s)
        self._look_elsewhere(elsewhere)
        self._elsewhere = elsewhere

    @abstractmethod
    def export_totals(self, since: int = 0) -> Totals:
        """Return the totals that this rank has changed since version ``since`` of the totals."""

    @abstractmethod
    def _merge(self, origin: str, totals: Totals, now_s: float) -> None:
        """Merge the totals of charges that the data-parallel rank ``origin`` has published."""

    @abstractmethod
    def _look_elsewhere(self, elsewhere: Mapping[str, bool]) -> None:
        """Record which clients are not idle because they have requests at other ranks."""

    @abstractmethod
    def active(self) -> Collection[str]:
        """Return the clients of this rank that other ranks must treat as active."""

    @contextmanager
    def arriving(self, client: str) -> Iterator[None]:
        """Record the rise of the client's counter while an arriving request is handled."""
        yield


class CounterRanks(RankAccount):
    """Counters of clients' service at all ranks; an idle client's counter rises when it returns."""

    def __init__(self, scheduler: Any, account: Counters) -> None:
        super().__init__()
        self._account = account
        self._account.books_late = False
        self._shared = SharedCounters(scheduler, NO_LEAD)
        self._changes = Changes()
        self._others = Heard()

    def export_totals(self, since: int = 0) -> Totals:
        shared = self._shared
        for client in shared.changed():
            self._changes.note(client)
        changed = self._changes.exported(since)
        clients = list(shared.clients()) if changed is None else changed
        return Totals(
            self._changes.version,
            {client: {HERE: shared.charged(client)} for client in clients},
            {one: {HERE: shared.raised[one]} for one in clients if one in shared.raised},
            since=0 if changed is None else since,
        )

    def _merge(self, origin: str, totals: Totals, now_s: float) -> None:
        if (newly := self._others.newer(origin, totals)) is not None:
            self._shared.apply_totals(origin, newly, totals.raised, (), HERE, now_s)

    def _look_elsewhere(self, elsewhere: Mapping[str, bool]) -> None:
        for client in elsewhere:
            self._account.of.setdefault(client, 0)
        self._account.elsewhere = elsewhere

    def active(self) -> Collection[str]:
        # No client is listed, because other ranks need only the waiting clients, which ``tell``
        # publishes.
        return ()

    @contextmanager
    def arriving(self, client: str) -> Iterator[None]:
        before = self._shared.counter(client)
        yield
        self._shared.lifted(client, before)


class CreditRanks(RankAccount):
    """Deficit credits: a client's credit is its quanta minus its charges at all ranks."""

    def __init__(self, account: Credits) -> None:
        super().__init__()
        self._account = account
        self._account.books_late = False
        self._shared = account.shared = SharedCredit()

    def export_totals(self, since: int = 0) -> Totals:
        return self._shared.export_credit(since)

    def _merge(self, origin: str, totals: Totals, now_s: float) -> None:
        for client, change in self._shared.new_changes(origin, totals).items():
            self._account.apply_remote(client, change)

    def _look_elsewhere(self, elsewhere: Mapping[str, bool]) -> None:
        self._account.look_elsewhere(elsewhere)

    def active(self) -> Collection[str]:
        return self._account.requests


def ranks_of(scheduler: LocalScheduler) -> RankAccount | None:
    """Return a scheduler's account over all ranks, or None if the scheduler counts no service.

    Raises UsageError if the scheduler counts something that ranks cannot share.
    """
    account = getattr(scheduler, "account", None)
    if type(account) is Counters and shares_counters(scheduler):
        return CounterRanks(scheduler, account)
    if type(account) is Credits and not account.in_tree:
        return CreditRanks(account)
    if (
        scheduler.counts_service
        or type(scheduler).balances is not LocalScheduler.balances
        or type(scheduler).accepts is not LocalScheduler.accepts
    ):
        raise UsageError(
            f"{scheduler.name} with these parameters cannot share its counts of service or "
            "requests between data-parallel ranks; use vtc or dlpm without tenants, or one rank"
        )
    return None
