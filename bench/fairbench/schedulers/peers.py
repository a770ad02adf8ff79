"""The exchange of charges between routers, so that several routers share service fairly.

The sums of charges stay correct even if messages are late, lost or repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, Protocol, TypeGuard, runtime_checkable

from annotated_types import Ge, Le
from pydantic import FiniteFloat

from fairbench.schedulers.params import NotNegative, Positive

ROUTERS = "routers"  # the prefix of the settings that ``RoutersParams`` defines

Share = Annotated[FiniteFloat, Ge(0), Le(0.95)]


class Terms(NamedTuple):
    """A limit on how far a client's service may lead clients that wait at other gateways.

    A client's largest allowed lead, in tokens divided by weight, is ``ahead_tok_s`` times the
    seconds since another router last reported the waiting client. A constant limit on leads could
    leave workers idle until the next message arrives. Messages older than ``forget_s`` seconds are
    ignored.
    """

    ahead_tok_s: float
    forget_s: float


@dataclass(frozen=True)
class RoutersParams:
    """The parameters of several routers in front of the same workers.

    The flags ``--routers N`` and ``--set routers.NAME=VALUE`` set the parameters.

    ``form`` selects how routers share charges. ``independent`` and ``sticky`` routers exchange no
    charges. With ``sticky``, all requests of a client go to the same router, which a hash of the
    client's name selects. With ``exchange``, each router sends its sums of charges to all other
    routers every ``every_s`` seconds. With ``ledger``, a single service stores all charges; a
    router queries this service before each request, and waits twice ``delay_s`` seconds for the
    answer.

    ``delay_s`` is the delay of a message between routers, in seconds. ``lost`` and ``repeated`` are
    the fractions of messages that are lost or sent again ``every_s`` / 2 seconds later.

    A client's lead in service over a client that waits at another router is limited to
    ``ahead_tok_s`` x workers x seconds since the last message about the waiting client. Leads in
    service are in tokens divided by weight. A good value of ``ahead_tok_s`` is about a worker's
    service rate in tokens per second; with a lower value, workers idle between messages.

    A router that is silent for ``forget_s`` seconds no longer delays clients at other routers. By
    default, ``forget_s`` is 6 x (``every_s`` + ``delay_s``), but at least 1 s.

    ``skew`` is the ratio of a client's requests at its most used router to those at its least used
    router. The most used router differs between successive clients with ``favourite=each``, and is
    the same for all clients with ``favourite=one``. With ``form=sticky``, ``skew`` is the ratio of
    the expected numbers of clients at the most and least used routers.
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
        """Return the limit on a client's lead in service, for a fleet of ``workers`` workers."""
        forget_s = self.forget_s or max(1.0, 6 * (self.every_s + self.delay_s))
        return Terms(self.ahead_tok_s * workers, forget_s)


def ingress_shares(skew: float, number: int) -> list[float]:
    """Return the fraction of a client's requests at each router, the most used router first.

    >>> ingress_shares(3.0, 2)
    [0.75, 0.25]
    """
    parts = [skew ** -(place / max(1, number - 1)) for place in range(number)]
    return [part / sum(parts) for part in parts]


Sums = Mapping[str, Mapping[int, float]]
"""Sums of charges by client, and then by a worker's number or by a gateway's priority."""


class Totals(NamedTuple):
    """A message with all charges that its origin (a router, gateway or rank) has ever made.

    A message with a higher ``version`` replaces earlier messages of the same origin. ``raised``
    holds sums that never decrease: the total by which a client's VTC counter was lifted, or the
    client's rounds of D2LPM quanta. If several messages report a client's sum in ``raised``, the
    highest sum counts. ``waiting`` maps each client to the places (workers or bands) with queued
    requests of the client.

    If ``since`` is above 0, ``charged`` and ``raised`` contain only clients whose sums changed
    after version ``since``, which the receiver must know. A client's entry has all sums of the
    client, or is empty if the sender deleted them. ``waiting`` lists all waiting clients, whatever
    the value of ``since``.
    """

    version: int
    charged: Sums
    raised: Sums
    waiting: Mapping[str, tuple[int, ...]] = {}
    since: int = 0


NOTHING = Totals(0, {}, {})


@runtime_checkable
class Exchanges(Protocol):
    """A router or a gateway that exchanges sums of charges (``Totals``) with other routers."""

    def join_peers(self) -> None:
        """Start to record charges for other routers; called before the first request."""

    def export_totals(self, since: int = 0) -> Totals:
        """Return the sums of this router's charges that have changed after version ``since``.

        The sums of all clients are returned if ``since`` is 0, or if changes after ``since`` were
        forgotten.
        """

    def charged_totals(self) -> Sums:
        """Return the sums of this router's or gateway's own charges to clients."""

    def heard_totals(self) -> Mapping[str, Totals]:
        """Return the latest message received from every other router or gateway."""

    def merge_totals(self, origin: str, totals: Totals, now_s: float) -> None:
        """Apply another router's message; messages may be late, repeated or out of order."""

    def forget_origin(self, origin: str) -> None:
        """Delete the last message of a router that has stopped for good, but keep its charges."""


class Heard:
    """The latest sums of charges that each other router has sent (``Totals``)."""

    def __init__(self) -> None:
        self.latest: dict[str, Totals] = {}
        self._places: dict[str, set[int]] = {}

    def charged_places(self, origin: str) -> Collection[int]:
        """Return the workers at which the router ``origin`` has charged a client."""
        return self._places.get(origin, ())

    def forget_origin(self, origin: str) -> None:
        """Delete the sums received from a router; sums in its next message then count in full."""
        self.latest.pop(origin, None)
        self._places.pop(origin, None)

    def newer(self, origin: str, totals: Totals) -> dict[str, dict[int, float]] | None:
        """Return a message's new charges, or None for an old message or after a lost message."""
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
    """Return the sums of charges in ``known``, updated with the newer sums in ``changed``."""
    patched = known if isinstance(known, dict) else dict(known)
    for client, of in changed.items():
        if of:
            patched[client] = of
        else:
            patched.pop(client, None)
    return patched


# maximum number of clients in the record of changed charges
MOST = 100_000


class Changes:
    """A record of the clients whose sums of charges changed after each exported version."""

    def __init__(self, most: int = MOST) -> None:
        self.version = 0
        self._most = most
        # ``_noted`` maps each client to the version of the charge sums in which the client's sums
        # last changed. The first entry is the client whose sums changed least recently.
        self._noted: dict[str, int] = {}
        self._forgotten = 0

    def note(self, client: str) -> None:
        """Record that the sums of a client's charges have changed since the last export."""
        self._noted.pop(client, None)
        self._noted[client] = self.version + 1
        if len(self._noted) > self._most:
            self._forgotten = self._noted.pop(next(iter(self._noted)))

    def exported(self, since: int) -> list[str] | None:
        """Return the clients whose sums changed after version ``since``; begin a new version.

        The returned clients are sorted by the time at which their sums last changed. Returns None
        if the next message must contain all clients. A call takes time in proportion to the number
        of returned clients.
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


# keys of a client's two sums in ``SharedCredit``: rounds of quanta, and waived credit
ROUNDS, WAIVED = 0, 1


class CreditChange(NamedTuple):
    """A change of a client's credit: granted rounds of quanta, charges, and waived credit."""

    rounds: float
    charged: Mapping[int, float]
    waived: float = 0.0


class SharedCredit:
    """The clients' credits: quanta times rounds of refills, minus charges and waived credit.

    Waived credit is positive credit that an idle client has lost. If two routers grant the same
    round of quanta or waive the same credit, the change counts once. Each router keeps the higher
    of its own sum and the received sum.
    """

    def __init__(self) -> None:
        self.charged: dict[str, dict[int, float]] = {}
        self.others = Heard()
        # ``_levels`` maps each client to its rounds of quanta (``ROUNDS``) and waived credit
        # (``WAIVED``).
        self._levels: dict[str, dict[int, float]] = {}
        self._changes = Changes()
        # ``has_forgotten`` is true if this router has deleted a client's credit. The router's later
        # messages then omit the charges before the deletion.
        self.has_forgotten = False

    def spend(self, client: str, worker: int, cost: float) -> None:
        """Record that this router charged the client; a negative cost is a refund."""
        of = self.charged.setdefault(client, {})
        of[worker] = of.get(worker, 0.0) + cost
        self._changes.note(client)

    def grant(self, client: str, rounds: float) -> None:
        self._raise(client, ROUNDS, rounds)

    def waive(self, client: str, credit: float) -> None:
        """Record that an idle client has lost its positive credit."""
        self._raise(client, WAIVED, credit)

    def _raise(self, client: str, place: int, by: float) -> None:
        levels = self._levels.setdefault(client, {})
        levels[place] = levels.get(place, 0.0) + by
        self._changes.note(client)

    def forget(self, client: str) -> None:
        """Delete a client's credit; a returning client starts with a new credit."""
        self.has_forgotten = True
        self.charged.pop(client, None)
        self._levels.pop(client, None)
        self._changes.note(client)

    def export_credit(self, since: int = 0) -> Totals:
        """Return a message that reports the credits to other routers (see ``Exchanges``)."""
        changed = self._changes.exported(since)
        if changed is None:
            since = 0
            charged = {client: dict(of) for client, of in self.charged.items()}
            raised = {client: dict(levels) for client, levels in self._levels.items()}
        else:
            charged = {client: dict(self.charged.get(client, {})) for client in changed}
            raised = {client: dict(self._levels.get(client, {})) for client in changed}
        return Totals(self._changes.version, charged, raised, since=since)

    def new_changes(self, origin: str, totals: Totals) -> dict[str, CreditChange]:
        """Return the changes of clients' credits in a router's message; {} for an old message."""
        newly = self.others.newer(origin, totals)
        if newly is None:
            return {}
        found = {}
        for client in dict.fromkeys((*totals.charged, *totals.raised)):
            own = self._levels.get(client, {})
            levels = totals.raised.get(client, {})
            more = {at: to - own.get(at, 0.0) for at, to in levels.items() if to > own.get(at, 0.0)}
            if more:
                # The sums in the message replace the client's stored sums. Adding differences to
                # the stored sums could cause rounding errors.
                self._levels[client] = own | {at: levels[at] for at in more}
                self._changes.note(client)
            charged = newly.get(client, {})
            # A client whose reported sums are unchanged must not count as recently used.
            if more or any(charged.values()):
                rounds, waived = more.get(ROUNDS, 0.0), more.get(WAIVED, 0.0)
                found[client] = CreditChange(rounds, charged, waived)
        return found


class LiftedCounters(Protocol):
    """The counters of clients; ``last_left`` is the client whose request left the queue last."""

    last_left: str | None

    def balances(self) -> dict[str, float]: ...
    def replace(self, kept: dict[str, float]) -> None: ...


class CountsService(Protocol):
    """A policy under which the waiting client with the lowest counter goes first.

    The policy adds charges to the counters in ``account``. When the policy raises the counter of a
    returning client, the increase is called a lift.
    """

    shares_counters: bool
    account: LiftedCounters


def shares_counters(policy: object) -> TypeGuard[CountsService]:
    """Return whether several routers can share this policy's counters."""
    return getattr(policy, "shares_counters", False) is True


class NotedCounters(dict[str, float]):
    """Counters that record which clients have changed since the last export."""

    def __init__(self, counters: Mapping[str, float]) -> None:
        super().__init__(counters)
        self.changed = dict.fromkeys(counters)

    def __setitem__(self, client: str, counter: float) -> None:
        self.changed[client] = None
        super().__setitem__(client, counter)

    def setdefault(self, client: str, counter: float = 0.0, /) -> float:
        if client not in self:
            self[client] = counter
        return self[client]

    def set_heard(self, client: str, counter: float) -> None:
        """Set a counter that includes other routers' charges, but do not record a change."""
        super().__setitem__(client, counter)


class SharedCounters:
    """A policy's counters, including the charges that other routers have reported.

    A client's counter is the sum of all routers' charges plus the client's highest lift at any
    router. A lift is the amount by which the policy raised the counter when the client returned
    after an idle time.
    """

    def __init__(self, policy: CountsService, terms: Terms) -> None:
        self._account = policy.account
        self._counters = NotedCounters(policy.account.balances())
        policy.account.replace(self._counters)
        self._terms = terms
        self._heard: dict[str, float] = {}
        self.raised: dict[str, float] = {}
        # ``_elsewhere`` maps each other router to the time (s) of its latest message, and to the
        # clients that wait at the other router.
        self._elsewhere: dict[str, tuple[float, Collection[str]]] = {}
        # ``ahead`` is the largest amount by which a served client's counter was above the counter
        # of a client that waited at another router.
        self.ahead = 0.0

    def charged(self, client: str) -> float:
        """Return the amount that this router has charged the client."""
        others = self.raised.get(client, 0.0) + self._heard.get(client, 0.0)
        return self.counter(client) - others

    def counter(self, client: str) -> float:
        """Return the client's counter for all routers together, or 0 for an unknown client."""
        return self._counters.get(client, 0.0)

    def changed(self) -> Collection[str]:
        """Return the clients whose counters have changed since the last call."""
        found, self._counters.changed = self._counters.changed, {}
        return found

    def clients(self) -> Collection[str]:
        return self._counters.keys()

    def lifted(self, client: str, before: float) -> None:
        """Record a lift, which raised the client's counter from ``before`` to its present value."""
        by = self.counter(client) - before
        if by > 0:
            self.raised[client] = self.raised.get(client, 0.0) + by

    def apply_totals(
        self, origin: str, charged: Sums, raised: Sums, waiting: Collection[str], place: int,
        now_s: float,
    ) -> None:  # fmt: skip
        """Apply new charges and counter lifts of another router, and record its waiting clients.

        Charges and counter lifts are applied only if they belong to ``place``, which is a worker or
        a gateway's priority. ``raised`` has the total by which each client's counter was lifted.
        """
        for client, of in charged.items():
            if place in of:
                self._heard[client] = self._heard.get(client, 0.0) + of[place]
                self._counters.set_heard(client, self.counter(client) + of[place])
        for client, levels in raised.items():
            more = levels.get(place, 0.0) - self.raised.get(client, 0.0)
            if more > 0:
                self.raised[client] = self.raised.get(client, 0.0) + more
                self._counters[client] = self.counter(client) + more
        if served := [client for client, of in charged.items() if of.get(place, 0.0) > 0]:
            # If a client arrives at an empty queue, its counter rises to the counter of
            # ``last_left``. Otherwise, the scheduler would serve only the arriving client until its
            # counter had caught up.
            self._account.last_left = min(served, key=self.counter)
        for client in waiting:
            self._counters.set_heard(client, self.counter(client))
        self._elsewhere[origin] = now_s, waiting

    def forget_origin(self, origin: str) -> None:
        self._elsewhere.pop(origin, None)

    def elsewhere(self, now_s: float) -> dict[str, float]:
        """Return the clients that wait at other routers, each with the time of the last report."""
        found: dict[str, float] = {}
        for heard_s, clients in self._elsewhere.values():
            if now_s - heard_s <= self._terms.forget_s:
                for client in clients:
                    found[client] = max(heard_s, found.get(client, heard_s))
        return found

    def may_go_s(self, client: str, now_s: float) -> float | None:
        """Return the time (s) from which the client may be served, or None if it need not wait."""
        own, rate, forget_s = self._counters[client], self._terms.ahead_tok_s, self._terms.forget_s
        latest, ahead = now_s, 0.0
        for other, heard_s in self.elsewhere(now_s).items():
            behind = own - self._counters[other]
            if behind > 0:
                ahead = max(ahead, behind)
                # The client's allowed lead in service over the client ``other`` grows by ``rate``
                # per second since the last message about ``other``. If ``rate`` is 0, no lead is
                # allowed.
                latest = max(latest, heard_s + min(behind / rate if rate else forget_s, forget_s))
        if latest > now_s:
            return latest
        self.ahead = max(self.ahead, ahead)
        return None
