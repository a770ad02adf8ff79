"""Totals: what one router tells the others, so that late, lost and repeated news do no harm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

Sums = Mapping[str, Mapping[int, float]]
"""By client and place: a worker, or a band of a gateway."""


class Totals(NamedTuple):
    """All that one origin has ever charged, not what is new: so any later message has it all.

    Only the origin itself writes it, and a higher ``version`` replaces a lower one. ``raised`` are
    levels to which clients were lifted, of which everybody takes the highest: a VTC's lift, the
    rounds of a D2LPM's quanta. ``waiting``: at which places clients have requests that are held.
    """

    version: int
    charged: Sums
    raised: Sums
    waiting: Mapping[str, tuple[int, ...]] = {}


@runtime_checkable
class Exchanges(Protocol):
    """A router or a gateway that can be one of several. Its home carries the messages."""

    def join_peers(self) -> None:
        """Told once, before the first request, that there are others."""
        ...

    def export_totals(self) -> Totals:
        """What the others are to hear of this one."""
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
    """The latest totals of each origin."""

    def __init__(self) -> None:
        self.latest: dict[str, Totals] = {}

    def newer(self, origin: str, totals: Totals) -> dict[str, dict[int, float]] | None:
        """What its origin has charged since it was heard last; None for nothing that is new."""
        before = self.latest.get(origin)
        if before is not None and totals.version <= before.version:
            return None
        self.latest[origin] = totals
        known = {} if before is None else before.charged
        return {
            client: {
                place: sum_ - known.get(client, {}).get(place, 0.0) for place, sum_ in of.items()
            }
            for client, of in totals.charged.items()
        }
