"""Clocks of several machines: the difference between two clocks, and its uncertainty."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

ROUNDS = 20


class Offset(msgspec.Struct, frozen=True):
    """The lead of a clock over this machine's in seconds, with an error of up to ``uncertainty_s``.

    ``at_s`` is the time of the measurement on our clock.
    """

    at_s: float
    offset_s: float
    uncertainty_s: float


def compare(ask: Callable[[], float], now_s: Callable[[], float], rounds: int = ROUNDS) -> Offset:
    """Return the offset of the clock that ``ask`` reads, which takes time, against ``now_s``.

    The reading happens at some moment between request and reply. Its time is taken to be the
    midpoint, with an error of up to half the round trip, even if the two directions differ
    (Cristian, "Probabilistic clock synchronization", 1989). The fastest of ``rounds`` rounds
    counts.
    """
    return min((_once(ask, now_s) for _ in range(rounds)), key=lambda found: found.uncertainty_s)


def _once(ask: Callable[[], float], now_s: Callable[[], float]) -> Offset:
    asked_s, read_s, heard_s = now_s(), ask(), now_s()
    middle_s = (asked_s + heard_s) / 2
    return Offset(middle_s, read_s - middle_s, (heard_s - asked_s) / 2)


class Comparison(msgspec.Struct, frozen=True):
    """A driver's clock against this machine's before and after a run; None if not asked again.

    ``host`` is where the driver is, or None for this machine.
    """

    before: Offset
    after: Offset | None = None
    host: str | None = None

    @property
    def drift_s(self) -> float:
        """The increase of the clock's lead over the run; 0 if within the combined uncertainty."""
        if self.after is None:
            return 0.0
        drift_s = self.after.offset_s - self.before.offset_s
        unsure_s = self.after.uncertainty_s + self.before.uncertainty_s
        return drift_s if abs(drift_s) > unsure_s else 0.0

    @property
    def uncertainty_s(self) -> float:
        """The uncertainty, in seconds, of times that this clock comparison corrects."""
        after = self.before if self.after is None else self.after
        return max(self.before.uncertainty_s, after.uncertainty_s)

    def ahead_s(self, since_s: float) -> float:
        """Return the lead after ``since_s`` seconds of this machine's clock."""
        if self.after is None or self.after.at_s <= self.before.at_s:
            return 0.0
        return self.drift_s * since_s / (self.after.at_s - self.before.at_s)
