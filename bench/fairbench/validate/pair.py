"""A pair of numbers: simulated and measured."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True, slots=True)
class Pair:
    """A number of both sides; NaN if a side has none."""

    simulated: float
    measured: float

    @property
    def error_pct(self) -> float | None:
        """The error in percent of the measured value; None if undefined."""
        if self.simulated == self.measured:
            return 0.0
        if not self.measured or not isfinite(self.simulated - self.measured):
            return None
        return 100 * (self.simulated / self.measured - 1)

    def within(self, percent: float) -> bool:
        """Return whether the error is defined and at most ``percent`` in either direction."""
        return self.error_pct is not None and abs(self.error_pct) <= percent

    def as_dict(self) -> dict[str, float | None]:
        """Return the pair as JSON types; undefined is null."""
        simulated, measured = (x if isfinite(x) else None for x in (self.simulated, self.measured))
        return {"simulated": simulated, "measured": measured, "error_pct": self.error_pct}
