"""Counters shared by the gateways of several routers: the least goes first at all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, TypeGuard

from fairbench.schedulers.peers.params import Terms
from fairbench.schedulers.peers.totals import Sums


class LiftedCounters(Protocol):
    """Counters of an account; a returning client is lifted to ``last_left`` if none waits."""

    last_left: str | None

    def balances(self) -> dict[str, float]: ...
    def replace(self, kept: dict[str, float]) -> None: ...


class CountsService(Protocol):
    """A policy under which the waiting client with the least counter goes first.

    Charges are added to its ``account``; additions at a request's arrival are lifts.
    """

    shares_counters: bool
    account: LiftedCounters


def shares_counters(policy: object) -> TypeGuard[CountsService]:
    """Return whether several routers can share the counters of this policy or policy class."""
    return getattr(policy, "shares_counters", False) is True


class NotedCounters(dict[str, float]):
    """Counters that record which clients this router has changed since the last query."""

    def __init__(self, counters: Mapping[str, float]) -> None:
        super().__init__(counters)
        self.changed = dict.fromkeys(counters)

    def __setitem__(self, client: str, counter: float) -> None:
        self.changed[client] = None
        super().__setitem__(client, counter)

    def setdefault(self, client: str, counter: float = 0.0, /) -> float:
        """Return the client's counter, after setting a missing counter to ``counter``."""
        if client not in self:
            self[client] = counter
        return self[client]

    def hear(self, client: str, counter: float) -> None:
        """Set the client's counter from charges of other routers, without recording a change."""
        super().__setitem__(client, counter)


class SharedCounters:
    """The ``counters`` of one policy, which include the reported counters of other routers.

    counter = the highest lift of the client at any router + the charges of all routers. This
    router's own charges are the remainder, for any policy.
    """

    def __init__(self, policy: CountsService, terms: Terms) -> None:
        self._account = policy.account
        self._counters = NotedCounters(policy.account.balances())
        policy.account.replace(self._counters)
        self._terms = terms
        self._heard: dict[str, float] = {}  # charges of other routers
        self.raised: dict[str, float] = {}
        # time of the message, waiting clients
        self._elsewhere: dict[str, tuple[float, Collection[str]]] = {}
        self.ahead = 0.0  # the largest lead of a served client over a client that waited elsewhere

    def charged(self, client: str) -> float:
        """Return the amount that this router has charged the client."""
        others = self.raised.get(client, 0.0) + self._heard.get(client, 0.0)
        return self.counter(client) - others

    def counter(self, client: str) -> float:
        """Return the client's known charges and lifts at all routers; 0 for an unknown client."""
        return self._counters.get(client, 0.0)

    def changed(self) -> Collection[str]:
        """Return the clients with changes to report since the last call."""
        found, self._counters.changed = self._counters.changed, {}
        return found

    def clients(self) -> Collection[str]:
        return self._counters.keys()

    def lifted(self, client: str, before: float) -> None:
        """Record that the policy has just lifted the client's counter, which was ``before``."""
        by = self.counter(client) - before
        if by > 0:
            self.raised[client] = self.raised.get(client, 0.0) + by

    def hear(
        self, origin: str, charged: Sums, raised: Sums, waiting: Collection[str], place: int,
        now_s: float,
    ) -> None:  # fmt: skip
        """Apply another router's new charges and lifts, and record its waiting clients.

        Only sums of ``place`` are applied, such as those of a gateway's band. ``raised`` are levels
        to which clients were lifted.
        """
        for client, of in charged.items():
            if place in of:
                self._heard[client] = self._heard.get(client, 0.0) + of[place]
                self._counters.hear(client, self.counter(client) + of[place])
        for client, levels in raised.items():
            more = levels.get(place, 0.0) - self.raised.get(client, 0.0)
            if more > 0:
                self.raised[client] = self.raised.get(client, 0.0) + more
                self._counters[client] = self.counter(client) + more  # the change is passed on
        if served := [client for client, of in charged.items() if of.get(place, 0.0) > 0]:
            # Otherwise a client that comes to an empty queue would be entitled to all the service
            # that others received there.
            self._account.last_left = min(served, key=self.counter)
        for client in waiting:
            self._counters.hear(client, self.counter(client))
        self._elsewhere[origin] = now_s, waiting

    def forget(self, origin: str) -> None:
        self._elsewhere.pop(origin, None)

    def elsewhere(self, now_s: float) -> dict[str, float]:
        """Return the clients that wait at other routers, with the time of their latest message."""
        found: dict[str, float] = {}
        for heard_s, clients in self._elsewhere.values():
            if now_s - heard_s <= self._terms.forget_s:
                for client in clients:
                    found[client] = max(heard_s, found.get(client, heard_s))
        return found

    def may_go_s(self, client: str, now_s: float) -> float | None:
        """Return when the client may go before clients of whose waiting other routers told."""
        own = self._counters[client]
        latest, ahead = now_s, 0.0
        for other, heard_s in self.elsewhere(now_s).items():
            behind = own - self._counters[other]
            if behind > 0:
                ahead = max(ahead, behind)
                latest = max(latest, self._granted_s(behind, heard_s))
        if latest > now_s:
            return latest
        self.ahead = max(self.ahead, ahead)
        return None

    def _granted_s(self, behind: float, heard_s: float) -> float:
        """Return when the lead is granted or the message is too old. A rate of 0 grants no lead."""
        rate = self._terms.ahead_tok_s
        waits_s = min(behind / rate if rate else self._terms.forget_s, self._terms.forget_s)
        return heard_s + waits_s
