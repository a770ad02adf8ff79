"""The exchange of charges between several routers, so that they are as fair as a single router.

Charges stay correct even if messages are late, lost or repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, Protocol, TypeGuard, runtime_checkable

from annotated_types import Ge, Le
from pydantic import FiniteFloat

from fairbench.schedulers.params import NotNegative, Positive

ROUTERS = "routers"  # name of the table with the parameters ``RoutersParams``

Share = Annotated[FiniteFloat, Ge(0), Le(0.95)]


class Terms(NamedTuple):
    """A limit on how far a client gets ahead of clients at other gateways between two messages.

    The allowed lead over a client that waits at another gateway grows by ``ahead_tok_s`` (tokens
    over weight) per second since the last message about that client. Until the next message, its
    progress is unknown here; if all gateways stopped sending requests for that time, the fleet
    would idle. A message older than ``forget_s`` seconds delays no client.
    """

    ahead_tok_s: float
    forget_s: float


@dataclass(frozen=True)
class RoutersParams:
    """The parameters of several routers in front of the same workers.

    The flags are ``--routers N`` and ``--set routers.NAME=VALUE``.

    ``form`` selects how routers share charges. ``independent`` routers exchange no charges.
    ``sticky`` routers exchange none either, but a hash of the client's name always sends a client
    to the same router. With ``exchange``, each router sends its totals to all other routers every
    ``every_s`` seconds. With ``ledger``, a single service stores all charges; a router queries it
    before each request, and waits twice ``delay_s`` seconds for the answer.

    ``delay_s`` is the delay of a message of ``exchange``, in seconds. ``lost`` and ``repeated`` are
    fractions of all messages; a repeated message arrives again half an interval later.

    ``ahead_tok_s`` limits the lead of a client over a client that waits at another router. It is
    measured in tokens over weight, for each worker and each second since the last message about the
    waiting client. A good value is about a worker's service rate; with a lower value, the fleet
    idles between two messages.

    ``forget_s`` is a time in seconds: a router that has sent no message for so long no longer
    delays clients at other routers. The default is six times the sum of interval and delay, at
    least 1 s.

    ``skew`` is the ratio of a client's requests at its favourite router to its requests at its
    least favourite router; the ratio between successive routers is constant. ``favourite=each``
    gives clients different favourite routers in turn, and ``favourite=one`` gives all clients the
    same one. With ``form=sticky``, ``favourite`` is always ``one``.
    """

    form: Literal["independent", "sticky", "exchange", "ledger"] = "independent"
    skew: Annotated[FiniteFloat, Ge(1)] = 1.0
    favourite: Literal["each", "one"] = "each"
    every_s: Annotated[FiniteFloat, Ge(0.001)] = 0.1
    delay_s: NotNegative = 0.001
    lost: Share = 0.0
    repeated: Share = 0.0
    ahead_tok_s: NotNegative = 10_000.0
    forget_s: Positive | None = None

    @property
    def shares_sums(self) -> bool:
        return self.form in ("exchange", "ledger")

    def terms(self, workers: int) -> Terms:
        """Return the limit on a client's lead for a fleet of ``workers`` workers."""
        forget_s = self.forget_s or max(1.0, 6 * (self.every_s + self.delay_s))
        return Terms(self.ahead_tok_s * workers, forget_s)


def ingress_shares(skew: float, number: int) -> list[float]:
    """Return the share of a client's requests at each router, the client's favourite first.

    >>> shares(3.0, 2)
    [0.75, 0.25]
    """
    parts = [skew ** -(place / max(1, number - 1)) for place in range(number)]
    return [part / sum(parts) for part in parts]


Sums = Mapping[str, Mapping[int, float]]
"""Sums of charges by client and by place, which is a worker or a band of a gateway."""


class Totals(NamedTuple):
    """A message with the sums of all charges that its origin (a router, gateway or rank) ever made.

    A message with a higher ``version`` replaces earlier messages of its origin. ``raised`` are the
    levels to which clients were lifted, such as VTC's lifts or the rounds of D2LPM's quanta;
    receivers keep the highest level. ``waiting`` maps clients to the places (workers or bands) at
    which they have queued requests.

    With ``since`` above 0, ``charged`` and ``raised`` contain only clients that changed after
    version ``since``; a receiver must already know this version or a later one. The entry of a
    client in them is complete, or empty if the origin has forgotten the client. ``waiting`` always
    lists all clients that wait.
    """

    version: int
    charged: Sums
    raised: Sums
    waiting: Mapping[str, tuple[int, ...]] = {}
    since: int = 0


NOTHING = Totals(0, {}, {})


@runtime_checkable
class Exchanges(Protocol):
    """A router or a gateway that exchanges totals with its peers; the host carries the messages."""

    def join_peers(self) -> None:
        """Start to record charges for other routers; called once, before the first request."""

    def export_totals(self, since: int = 0) -> Totals:
        """Return the totals to send to peers that know version ``since`` of this origin.

        They are complete if ``since`` is 0, or so old that the changes are unknown.
        """

    def charged_totals(self) -> Sums:
        """Return what this router or gateway has itself charged each client."""

    def heard_totals(self) -> Mapping[str, Totals]:
        """Return the latest totals received from every other router or gateway."""

    def merge_totals(self, origin: str, totals: Totals, now_s: float) -> None:
        """Apply the totals of another origin; messages may be late, repeated or out of order."""

    def forget_origin(self, origin: str) -> None:
        """Delete the totals of an origin that has stopped for good, but keep its charges."""


class Heard:
    """The latest totals that each router has sent."""

    def __init__(self) -> None:
        self.latest: dict[str, Totals] = {}
        self._places: dict[str, set[int]] = {}

    def charged_places(self, origin: str) -> Collection[int]:
        """Return the workers at which the router ``origin`` has charged a client."""
        return self._places.get(origin, ())

    def forget_origin(self, origin: str) -> None:
        """Delete an origin's totals; its later totals would be charged again in full."""
        self.latest.pop(origin, None)
        self._places.pop(origin, None)

    def newer(self, origin: str, totals: Totals) -> dict[str, dict[int, float]] | None:
        """Return the charges in an origin's totals that are new here; None if unusable."""
        before = self.latest.get(origin, NOTHING)
        if not totals.since <= before.version < totals.version:
            return None
        newly = {}
        places = self._places.setdefault(origin, set())
        for client, of in totals.charged.items():
            if of != (known := before.charged.get(client, {})):
                newly[client] = {place: sum_ - known.get(place, 0.0) for place, sum_ in of.items()}
                places.update(of)
        base = before if totals.since > 0 else Totals(0, {}, {})
        charged = _patched(base.charged, totals.charged)
        raised = _patched(base.raised, totals.raised)
        self.latest[origin] = totals._replace(charged=charged, raised=raised, since=0)
        return newly


def _patched(known: Sums, changed: Sums) -> Sums:
    """Return the sums ``known``, updated with the newer values ``changed``.

    If ``known`` is a dict, it is modified.
    """
    patched = known if isinstance(known, dict) else dict(known)
    for client, of in changed.items():
        if of:
            patched[client] = of
        else:
            patched.pop(client, None)
    return patched


# The changes of at most ``MOST`` clients are remembered, namely the latest.
MOST = 100_000


class Changes:
    """A record of which clients have changed since each exported version of the totals."""

    def __init__(self, most: int = MOST) -> None:
        self.version = 0  # the version that was exported last
        self._most = most
        # ``_noted`` maps each client to the first version with its last change; the latest change
        # is last.
        self._noted: dict[str, int] = {}
        self._forgotten = 0  # the highest version whose changes were forgotten

    def note(self, client: str) -> None:
        """Record a change of the client's charges or levels since the last export."""
        self._noted.pop(client, None)
        self._noted[client] = self.version + 1
        if len(self._noted) > self._most:
            self._forgotten = self._noted.pop(next(iter(self._noted)))

    def exported(self, since: int) -> list[str] | None:
        """Start a new version; return the clients changed after ``since``, the latest change last.

        Return None if the totals of all clients must be exported. The running time is proportional
        to the number of returned clients.
        """
        whole = not max(1, self._forgotten) <= since <= self.version
        self.version += 1
        if whole:
            return None
        found = []
        for client in reversed(self._noted):
            if self._noted[client] <= since:
                break
            found.append(client)
        return found[::-1]


# Rounds of quanta belong to no worker; they are stored under this number.
ROUNDS = 0


class CreditChange(NamedTuple):
    """A change of a client's credit: further rounds of quanta, and further charges by worker."""

    rounds: float
    charged: Mapping[int, float]


class SharedCredit:
    """The credits of all clients: quanta times rounds of refills, minus the charges of all routers.

    A router knows its own charges at once. A round that two routers grant at the same time counts
    once, because receivers keep the highest number of rounds.
    """

    def __init__(self) -> None:
        # ``charged`` maps each client to this router's charges, by worker.
        self.charged: dict[str, dict[int, float]] = {}
        self.others = Heard()
        self._rounds: dict[str, float] = {}
        self._changes = Changes()
        # ``has_forgotten`` is true if a credit was forgotten; messages may then lack earlier
        # charges of a client.
        self.has_forgotten = False

    def spend(self, client: str, worker: int, cost: float) -> None:
        """Record that this router charged the client; a negative cost is a refund."""
        of = self.charged.setdefault(client, {})
        of[worker] = of.get(worker, 0.0) + cost
        self._changes.note(client)

    def grant(self, client: str, rounds: float) -> None:
        self._rounds[client] = self._rounds.get(client, 0.0) + rounds
        self._changes.note(client)

    def forget(self, client: str) -> None:
        """Delete a client's credit; if the client returns, it starts with a new credit."""
        self.has_forgotten = True
        self.charged.pop(client, None)
        self._rounds.pop(client, None)
        self._changes.note(client)

    def export_credit(self, since: int = 0) -> Totals:
        """Return the totals that other routers need, as ``Exchanges.export_totals`` does."""
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

    def new_changes(self, origin: str, totals: Totals) -> dict[str, CreditChange]:
        """Return the changes in another router's totals, by client; empty for outdated totals."""
        newly = self.others.newer(origin, totals)
        if newly is None:
            return {}
        found = {}
        for client in dict.fromkeys((*totals.charged, *totals.raised)):
            rounds = totals.raised.get(client, {}).get(ROUNDS, 0.0)
            more = max(0.0, rounds - self._rounds.get(client, 0.0))
            if more:
                self._rounds[client] = rounds
                # This router reports the change to its own peers, too.
                self._changes.note(client)
            charged = newly.get(client, {})
            # An entry without a change must not make the client count as recently used.
            if more or any(charged.values()):
                found[client] = CreditChange(more, charged)
        return found


class LiftedCounters(Protocol):
    """The counters of clients, and ``last_left``, the client that left the queue last."""

    last_left: str | None

    def balances(self) -> dict[str, float]: ...
    def replace(self, kept: dict[str, float]) -> None: ...


class CountsService(Protocol):
    """A policy under which the waiting client with the lowest counter goes first.

    It adds the charges of requests to its attribute ``account``. An amount that it adds when a
    request arrives is a lift, which raises the counter of a returning client.
    """

    shares_counters: bool
    account: LiftedCounters


def shares_counters(policy: object) -> TypeGuard[CountsService]:
    """Return whether several routers can share this policy's counters."""
    return getattr(policy, "shares_counters", False) is True


class NotedCounters(dict[str, float]):
    """Counters that record which clients this router has changed since the last export."""

    def __init__(self, counters: Mapping[str, float]) -> None:
        super().__init__(counters)
        self.changed = dict.fromkeys(counters)

    def __setitem__(self, client: str, counter: float) -> None:
        self.changed[client] = None
        super().__setitem__(client, counter)

    def setdefault(self, client: str, counter: float = 0.0, /) -> float:
        """Return the client's counter; if it is missing, set it to ``counter`` first."""
        if client not in self:
            self[client] = counter
        return self[client]

    def set_heard(self, client: str, counter: float) -> None:
        """Set the client's counter after charges of other routers, without recording a change."""
        super().__setitem__(client, counter)


class SharedCounters:
    """The counters of a policy, which include the reported charges of other routers.

    A client's counter is the sum of all routers' charges and of the client's highest lift at any
    router. A lift is the amount by which the policy raised the counter when the client returned
    after an idle time. A router's own charges are the client's counter minus the highest lift and
    the charges of all other routers.
    """

    def __init__(self, policy: CountsService, terms: Terms) -> None:
        self._account = policy.account
        self._counters = NotedCounters(policy.account.balances())
        policy.account.replace(self._counters)
        self._terms = terms
        # ``_heard`` maps each client to the charges reported by other routers.
        self._heard: dict[str, float] = {}
        self.raised: dict[str, float] = {}
        # ``_elsewhere`` maps each other router to the time (s) of its latest message and to the
        # clients that wait there.
        self._elsewhere: dict[str, tuple[float, Collection[str]]] = {}
        # ``ahead`` is the largest lead that a client had, when its request was sent, over a client
        # that waited at another router.
        self.ahead = 0.0

    def charged(self, client: str) -> float:
        """Return the amount that this router has charged the client."""
        others = self.raised.get(client, 0.0) + self._heard.get(client, 0.0)
        return self.counter(client) - others

    def counter(self, client: str) -> float:
        """Return the client's counter over all routers, or 0 if the client is unknown."""
        return self._counters.get(client, 0.0)

    def changed(self) -> Collection[str]:
        """Return the clients whose counters have changed since the last call."""
        found, self._counters.changed = self._counters.changed, {}
        return found

    def clients(self) -> Collection[str]:
        return self._counters.keys()

    def lifted(self, client: str, before: float) -> None:
        """Record that the policy has just lifted the client's counter, which was ``before``."""
        by = self.counter(client) - before
        if by > 0:
            self.raised[client] = self.raised.get(client, 0.0) + by

    def apply_totals(
        self, origin: str, charged: Sums, raised: Sums, waiting: Collection[str], place: int,
        now_s: float,
    ) -> None:  # fmt: skip
        """Apply another router's new charges and lifts, and record which clients wait there.

        Only charges at ``place`` are applied, for example those in one band of a gateway.
        ``raised`` are the levels to which clients' counters were lifted.
        """
        for client, of in charged.items():
            if place in of:
                self._heard[client] = self._heard.get(client, 0.0) + of[place]
                self._counters.set_heard(client, self.counter(client) + of[place])
        for client, levels in raised.items():
            more = levels.get(place, 0.0) - self.raised.get(client, 0.0)
            if more > 0:
                self.raised[client] = self.raised.get(client, 0.0) + more
                # This router reports the change to its own peers, too.
                self._counters[client] = self.counter(client) + more
        if served := [client for client, of in charged.items() if of.get(place, 0.0) > 0]:
            # If ``last_left`` were not updated, a client that comes to an empty queue would be owed
            # all the service that others received at the other router.
            self._account.last_left = min(served, key=self.counter)
        for client in waiting:
            self._counters.set_heard(client, self.counter(client))
        self._elsewhere[origin] = now_s, waiting

    def forget_origin(self, origin: str) -> None:
        self._elsewhere.pop(origin, None)

    def elsewhere(self, now_s: float) -> dict[str, float]:
        """Return each client that waits at another router, with the time of the latest message."""
        found: dict[str, float] = {}
        for heard_s, clients in self._elsewhere.values():
            if now_s - heard_s <= self._terms.forget_s:
                for client in clients:
                    found[client] = max(heard_s, found.get(client, heard_s))
        return found

    def may_go_s(self, client: str, now_s: float) -> float | None:
        """Return when the client may go before clients at other routers; None means at once."""
        own, rate, forget_s = self._counters[client], self._terms.ahead_tok_s, self._terms.forget_s
        latest, ahead = now_s, 0.0
        for other, heard_s in self.elsewhere(now_s).items():
            behind = own - self._counters[other]
            if behind > 0:
                ahead = max(ahead, behind)
                # The allowed lead grows with the age of the peer's message; with a rate of 0, no
                # lead is allowed.
                latest = max(latest, heard_s + min(behind / rate if rate else forget_s, forget_s))
        if latest > now_s:
            return latest
        self.ahead = max(self.ahead, ahead)
        return None
