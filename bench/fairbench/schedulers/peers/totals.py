"""The totals that one router sends to the others; late, lost and repeated messages do no harm."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

Sums = Mapping[str, Mapping[int, float]]
"""Client and location (a worker, or a band of a gateway) -> sum."""


class Totals(NamedTuple):
    """All charges that an origin has ever made, so that each later message is complete.

    Only the origin itself writes its totals, and a higher ``version`` replaces a lower version.
    ``raised`` are levels to which clients were lifted, such as a VTC's lift or the rounds of a
    D2LPM's quanta; receivers take the highest level. ``waiting``: the places at which clients have
    queued requests.

    With ``since`` above 0, ``charged`` and ``raised`` contain only clients that changed after that
    version. A client's entry is complete, or empty if the client is forgotten. ``waiting`` is
    always complete. A receiver that has received version ``since`` or later has then received this
    version.
    """

    version: int
    charged: Sums
    raised: Sums
    waiting: Mapping[str, tuple[int, ...]] = {}
    since: int = 0


NOTHING = Totals(0, {}, {})


@runtime_checkable
class Exchanges(Protocol):
    """A router or a gateway that can be one of several. Its host carries the messages."""

    def join_peers(self) -> None:
        """Prepare, once, before the first request, for other routers."""

    def export_totals(self, since: int = 0) -> Totals:
        """Return the totals to send to peers that already have version ``since`` from this origin.

        The totals are complete if ``since`` is 0, or so old that the changes are unknown.
        """

    def charged_totals(self) -> Sums:
        """Return the charges of this router or gateway."""

    def heard_totals(self) -> Mapping[str, Totals]:
        """Return the latest totals of each other router or gateway."""

    def merge_totals(self, origin: str, totals: Totals, now_s: float) -> None:
        """Merge totals of another origin, perhaps late, repeated or out of order."""

    def forget_origin(self, origin: str) -> None:
        """Forget the totals of an origin that has stopped for good; its charges stay charged."""


class Heard:
    """The latest complete totals of each origin."""

    def __init__(self) -> None:
        self.latest: dict[str, Totals] = {}
        self._places: dict[str, set[int]] = {}

    def places(self, origin: str) -> Collection[int]:
        """Return the workers at which the origin router has charged any client."""
        return self._places.get(origin, ())

    def forget(self, origin: str) -> None:
        """Forget an origin's totals; later totals of the origin would count again."""
        self.latest.pop(origin, None)
        self._places.pop(origin, None)

    def newer(self, origin: str, totals: Totals) -> dict[str, dict[int, float]] | None:
        """Return the origin's charges since its last message; None if stale or one is missing."""
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
    """Return ``known`` updated by ``changed``; ``known`` is modified if it is a dict."""
    patched = known if isinstance(known, dict) else dict(known)
    for client, of in changed.items():
        if of:
            patched[client] = of
        else:
            patched.pop(client, None)
    return patched


MOST = 100_000  # number of clients whose changes are remembered


class Changes:
    """Versions of an origin's export. Clients are kept in the order of their last change."""

    def __init__(self, most: int = MOST) -> None:
        self.version = 0  # the version of the last export
        self._most = most
        self._noted: dict[str, int] = {}  # client -> the first version that has its last change
        self._forgotten = 0  # the latest forgotten version

    def note(self, client: str) -> None:
        """Record that something of the client has changed since the last export."""
        self._noted.pop(client, None)
        self._noted[client] = self.version + 1
        if len(self._noted) > self._most:
            self._forgotten = self._noted.pop(next(iter(self._noted)))

    def exported(self, since: int) -> list[str] | None:
        """Start a new version; return the clients changed after ``since``, the latest change last.

        Returns None if all clients have to be exported. O(clients returned).
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


ROUNDS = 0  # the key of rounds of quanta, which belong to no worker


class CreditChange(NamedTuple):
    """A change in a client's credit: more rounds, and more charges by worker."""

    rounds: float
    charged: Mapping[int, float]


class SharedCredit:
    """A credit (rounds x quantum - charges) of which each router knows its own part immediately.

    Rounds are a level: if two routers grant the same round at the same time, it counts once.
    """

    def __init__(self) -> None:
        self.charged: dict[str, dict[int, float]] = {}  # charges of this router
        self.others = Heard()
        self._rounds: dict[str, float] = {}
        self._changes = Changes()
        self.has_forgotten = False  # then messages on a client may lack earlier charges

    def spend(self, client: str, worker: int, cost: float) -> None:
        """Record that this router charged the client; a negative cost is a refund."""
        of = self.charged.setdefault(client, {})
        of[worker] = of.get(worker, 0.0) + cost
        self._changes.note(client)

    def grant(self, client: str, rounds: float) -> None:
        self._rounds[client] = self._rounds.get(client, 0.0) + rounds
        self._changes.note(client)

    def forget(self, client: str) -> None:
        """Forget the credit of a client, so that the client starts again."""
        self.has_forgotten = True
        self.charged.pop(client, None)
        self._rounds.pop(client, None)
        self._changes.note(client)

    def export(self, since: int = 0) -> Totals:
        """Return the totals for the other routers, as in ``Exchanges``."""
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

    def hear(self, origin: str, totals: Totals) -> dict[str, CreditChange]:
        """Return the changes in another router's totals, by client; empty for stale totals."""
        newly = self.others.newer(origin, totals)
        if newly is None:
            return {}
        found = {}
        for client in dict.fromkeys((*totals.charged, *totals.raised)):
            rounds = totals.raised.get(client, {}).get(ROUNDS, 0.0)
            more = max(0.0, rounds - self._rounds.get(client, 0.0))
            if more:
                self._rounds[client] = rounds
                self._changes.note(client)  # the change is passed on
            charged = newly.get(client, {})
            if more or any(charged.values()):  # otherwise it would count as just used
                found[client] = CreditChange(more, charged)
        return found
