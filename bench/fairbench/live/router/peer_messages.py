"""Messages between peer routers, and records of what peers know of each other's totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

import msgspec

from fairbench.live.router.identity import is_name
from fairbench.live.router.problem import bad_request
from fairbench.schedulers.peers.totals import Totals

ALL_EVERY_S = 60.0  # everything is told, whatever the peer has said

MOST_TOKENS = 1e15  # of a sum: decades of any fleet, and far from where sums become infinite
MOST_VERSION = 2**53
MOST_ORIGINS = 1_000  # routers that are gone, in one message
MOST_CLIENTS = 200_000  # entries in one message
LONGEST_ORIGIN = 64

Versions = dict[str, dict[str, int]]
"""Origin and part -> the known version of its totals."""


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """A message of one process: ``origin`` is new at each start, ``fleet`` identifies its workers.

    ``gone`` holds the last totals of silent origins. A restarted router could not know them. It
    would otherwise treat a client that was served there as owed that service.
    """

    origin: str
    fleet: str
    parts: dict[str, Totals]
    gone: dict[str, dict[str, Totals]] = {}


def check_message(message: Message) -> None:
    """Raise Problem for impossible totals, which would make sums infinite or undefined."""
    told = {**message.gone, message.origin: message.parts}
    if len(told) > MOST_ORIGINS or any(len(origin) > LONGEST_ORIGIN for origin in told):
        raise bad_request("the message lists more routers than are allowed")
    every = [one for parts in told.values() for one in parts.values()]
    entries = sum(len(one.charged) + len(one.raised) + len(one.waiting) for one in every)
    if entries > MOST_CLIENTS:
        raise bad_request(f"the message has more than {MOST_CLIENTS} entries of clients")
    for totals in every:
        fits = 0 <= totals.since <= totals.version <= MOST_VERSION
        sums = (*totals.charged.items(), *totals.raised.items())
        fits &= all(abs(value) <= MOST_TOKENS for _, of in sums for value in of.values())
        if not (fits and all(map(is_name, {*dict(sums), *totals.waiting}))):
            raise bad_request("the message has impossible totals")


def places_of(totals: Totals) -> set[int]:
    """Return the workers or bands that totals mention."""
    sums = (*totals.charged.values(), *totals.raised.values())
    return {place for of in sums for place in of}.union(*totals.waiting.values())


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    """The state at ``origin``: its known versions of the origins in a message."""

    origin: str
    known: Versions


@dataclass
class Known:
    """The knowledge of one peer process, as its answers report it."""

    origin: str = ""
    versions: Versions = field(default_factory=dict)
    forgotten_s: float = -inf

    def of(self, origin: str) -> Mapping[str, int]:
        """Return the versions that the peer knows of an origin, by part."""
        return self.versions.get(origin, {})

    def answered(self, answer: Answer) -> None:
        """Record an answer; a new process at the same address starts without knowledge."""
        if answer.origin != self.origin:
            self.origin, self.versions = answer.origin, {}
        self.versions.update(answer.known)

    def forget_sometimes(self, now_s: float) -> None:
        """Discard the knowledge at intervals, so that all totals are sent again."""
        if now_s - self.forgotten_s >= ALL_EVERY_S:
            self.forgotten_s, self.versions = now_s, {}
