"""Idle clients of a gateway: the longest idle are forgotten, so that names take no memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import islice

from fairbench.schedulers.accounts.worker_credits import BATCH, MAX_CLIENTS


class IdleClients:
    """The clients without a request, of whom only ``MAX_CLIENTS`` are remembered."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()  # queued or sent
        self._idle: dict[str, None] = {}  # the longest idle first

    def entered(self, client: str) -> None:
        """Record a request that has entered the queue."""
        self._requests[client] += 1
        self._idle.pop(client, None)

    def over(self, client: str) -> Collection[str]:
        """Record the end of a request, and return the clients to forget."""
        self._requests[client] -= 1
        if self._requests[client] > 0:
            return ()
        del self._requests[client]
        self._idle[client] = None
        if len(self._idle) <= MAX_CLIENTS:
            return ()
        gone = list(islice(self._idle, BATCH))
        for one in gone:
            del self._idle[one]
        return gone
