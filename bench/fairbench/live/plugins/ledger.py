"""The ledger: the tokens of each client in this process, counted where they are produced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from fairbench.live.headers import OTHERS

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
MAX_CLIENTS = 1000  # with totals of their own


class Ledger:
    """Totals per client; beyond a limit, the longest inactive clients share one entry.

    ``extend_tokens`` leaves out what a retracted request computes again.
    """

    def __init__(self, on_count: Callable[[str, str, int], None] | None = None) -> None:
        self._clients: dict[str, Counter[str]] = {}  # the longest unused first
        self._totals: Counter[str] = Counter()
        self._on_count = on_count

    def count(self, what: str, client: str, amount: int = 1) -> None:
        """Add to one of ``COUNTED``.

        Args:
            what: Name in ``COUNTED``.
            client: Name of the client.
            amount: Number to add.
        """
        self._of(client)[what] += amount
        self._totals[what] += amount
        if self._on_count is not None:
            self._on_count(what, client, amount)

    def _of(self, client: str) -> Counter[str]:
        counts = self._clients.pop(client, None)
        if counts is None:
            counts = Counter()
            if len(self._clients) - (OTHERS in self._clients) >= MAX_CLIENTS:
                self._forget_one()
        self._clients[client] = counts
        return counts

    def _forget_one(self) -> None:
        others = self._clients.pop(OTHERS, Counter())
        others.update(self._clients.pop(next(iter(self._clients))))
        self._clients[OTHERS] = others

    def clients(self) -> Iterator[str]:
        """Return every client that has an entry."""
        return iter(self._clients)

    def of_client(self, client: str) -> dict[str, int]:
        """Return the client's totals."""
        counts = self._clients.get(client, Counter())
        return {what: counts[what] for what in COUNTED}

    def total(self, what: str) -> int:
        """Return the sum over all clients."""
        return self._totals[what]
