"""The ledger: who got what in this process, counted where it happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

COUNTED = (
    "arrivals",
    "refusals",
    "admissions",
    "retractions",
    "finished",
    "extend_tokens",
    "recomputed_tokens",
    "output_tokens",
)


class Ledger:
    """Totals per client. ``extend_tokens`` leaves out what a retracted request computes again."""

    def __init__(self, on_count: Callable[[str, str, int], None] | None = None) -> None:
        self._totals: dict[str, Counter[str]] = {name: Counter() for name in COUNTED}
        self._on_count = on_count

    def count(self, what: str, client: str, amount: int = 1) -> None:
        """Add to one of ``COUNTED``."""
        self._totals[what][client] += amount
        if self._on_count is not None:
            self._on_count(what, client, amount)

    def clients(self) -> Iterator[str]:
        """Every client that a request has come from."""
        return iter(self._totals["arrivals"] | self._totals["refusals"])

    def of_client(self, client: str) -> dict[str, int]:
        """The client's totals."""
        return {what: self._totals[what][client] for what in COUNTED}

    def total(self, what: str) -> int:
        """The sum over all clients."""
        return self._totals[what].total()
