"""Totals: what one router tells the others, so that late, lost and repeated news do no harm."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

Sums = Mapping[str, Mapping[int, float]]
"""By client and place: a worker, or a band of a gateway."""


class Totals(NamedTuple):
    """What one origin has ever charged, not what is new: so any later message has it all.

    Only the origin itself writes it, and a higher ``version`` replaces a lower one. ``raised`` are
    levels to which clients were lifted, of which everybody takes the highest: a VTC's lift, the
    rounds of a D2LPM's quanta. ``waiting``: at which places clients have requests that are held.
    Beyond ``since`` = 0 only clients are in it of whom something has changed after that version
    (all that there is of them: nothing, where they are forgotten), and all that wait. Whoever has
    heard that version or a later one has then heard this one.
    """

    version: int
    charged: Sums
    raised: Sums
    waiting: Mapping[str, tuple[int, ...]] = {}
    since: int = 0


NOTHING = Totals(0, {}, {})


@runtime_checkable
class Exchanges(Protocol):
    """A router or a gateway that can be one of several. Its home carries the messages."""

    def join_peers(self) -> None:
        """Told once, before the first request, that there are others."""
        ...

    def export_totals(self, since: int = 0) -> Totals:
        """What others are to hear of this one that have heard its version ``since``.

        Everything if that is 0, or so long ago that nobody knows what has changed.
        """
        ...

    def charged_totals(self) -> Sums:
        """What this one has charged."""
        ...

    def heard_totals(self) -> Mapping[str, Totals]:
        """The latest that was heard of each other one."""
        ...

    def merge_totals(self, origin: str, totals: Totals, now_s: float) -> None:
        """What another one has told, perhaps late, again, or after a later one."""
        ...


class Heard:
    """The latest totals of each origin, whole."""

    def __init__(self) -> None:
        self.latest: dict[str, Totals] = {}
        self._places: dict[str, set[int]] = {}

    def places(self, origin: str) -> Collection[int]:
        """Where it has charged anybody."""
        return self._places.get(origin, ())

    def newer(self, origin: str, totals: Totals) -> dict[str, dict[int, float]] | None:
        """What its origin has charged since it was heard last, by clients of whom that changed.

        None for nothing that is new, or if something before it is missing.
        """
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
    """All that is known now. What is known was made here, and is written to."""
    patched = known if isinstance(known, dict) else dict(known)
    for client, of in changed.items():
        if of:
            patched[client] = of
        else:
            patched.pop(client, None)
    return patched
