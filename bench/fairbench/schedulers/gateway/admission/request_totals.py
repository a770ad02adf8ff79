"""A set of requests that keeps counts and sums up to date, so that no caller iterates over it."""

from __future__ import annotations

from collections import Counter
from math import inf

from sortedcontainers import SortedList

from fairbench.core import Request


class RequestTotals:
    """A set of requests with counts by client, deadlines and the sum of prefill times."""

    def __init__(self) -> None:
        self.clients: Counter[str] = Counter()  # requests of each that has one
        self.prefill_s = 0.0
        self._prefills_s: dict[Request, float] = {}
        self._dues_s = SortedList()

    def __len__(self) -> int:
        return len(self._prefills_s)

    def __contains__(self, request: object) -> bool:
        return request in self._prefills_s

    def add(self, request: Request, prefill_s: float = 0.0) -> None:
        """Add a request, which must not be in the totals yet."""
        self._prefills_s[request] = prefill_s
        self.prefill_s += prefill_s
        self.clients[request.client] += 1
        if request.next_deadline_s is not None:
            self._dues_s.add(request.next_deadline_s)

    def remove(self, request: Request) -> None:
        """Remove a request. Raises KeyError if it is not in the totals."""
        prefill_s = self._prefills_s.pop(request)
        # The last client removes the rounding error of the sum.
        self.prefill_s = self.prefill_s - prefill_s if self._prefills_s else 0.0
        self.clients[request.client] -= 1
        if not self.clients[request.client]:
            del self.clients[request.client]
        if request.next_deadline_s is not None:
            self._dues_s.remove(request.next_deadline_s)

    def due_before(self, request: Request) -> int:
        """Return how many requests are due no later than this request.

        All if it has no deadline.
        """
        due_s = request.next_deadline_s
        return int(self._dues_s.bisect_right(inf if due_s is None else due_s))


NOBODY = RequestTotals()
"""An empty holding place. Do not add to it."""
