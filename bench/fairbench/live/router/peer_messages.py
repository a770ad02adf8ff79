"""What routers that are peers send each other, and what each knows of what another one knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

import msgspec

from fairbench.schedulers.peers.totals import Totals

ALL_EVERY_S = 60.0  # everything is told, whatever the peer has said

Versions = dict[str, dict[str, int]]
"""By origin and part: the version of its totals that is known."""


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """What one process tells: ``origin`` is new with each start, ``fleet`` what it is before.

    ``gone`` are the last totals of origins that are silent. Who starts again could not know them,
    and would take a client that was served there for one that is owed as much.
    """

    origin: str
    fleet: str
    parts: dict[str, Totals]
    gone: dict[str, dict[str, Totals]] = {}


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    """What is known at ``origin`` now of those that a message told of."""

    origin: str
    known: Versions


@dataclass
class Known:
    """What one peer knows by its answers, of one start of its process."""

    origin: str = ""
    versions: Versions = field(default_factory=dict)
    forgotten_s: float = -inf

    def of(self, origin: str) -> Mapping[str, int]:
        """The versions that it knows of an origin, by part."""
        return self.versions.get(origin, {})

    def answered(self, answer: Answer) -> None:
        """It says what it knows; another process at its address knows nothing else."""
        if answer.origin != self.origin:
            self.origin, self.versions = answer.origin, {}
        self.versions.update(answer.known)

    def forget_sometimes(self, now_s: float) -> None:
        """Now and then it is taken to know nothing."""
        if now_s - self.forgotten_s >= ALL_EVERY_S:
            self.forgotten_s, self.versions = now_s, {}
