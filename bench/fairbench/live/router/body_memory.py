"""Body memory: a limit on the memory of long request bodies."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from fairbench.live.http_server import LONG_BODY_BYTES
from fairbench.live.router.problem import Problem

SHARE = 4  # of the machine's memory, if nothing else is said
RETRY_AFTER_S = 5


def usual_bytes() -> int:
    """Return a quarter of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // SHARE


class BodyMemory:
    """A limit of ``most`` bytes on long bodies, which no single client can exhaust.

    A client may hold at most as much as remains free: half of the total if alone; the next client
    then gets half of the rest. Short bodies are neither refused nor counted here, since the limit
    on requests bounds them.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._had: Counter[str] = Counter()
        self._all = 0

    @contextmanager
    def lease(self, client: str) -> Iterator[BodyLease]:
        """Lease memory for one body until the block ends."""
        lease = BodyLease(self, client)
        try:
            yield lease
        finally:
            self._all -= lease.taken
            self._had[client] -= lease.taken
            if not self._had[client]:
                del self._had[client]

    def take(self, client: str, more: int) -> None:
        """Take ``more`` bytes for this client. Raises Problem (429) if they are too many."""
        own = self._had[client] + more
        if own > self._most - self._all - more:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"the long bodies of this client would take {own >> 20} MiB of memory, "
                "more than the limit allows; send fewer at a time",
                retry_after_s=RETRY_AFTER_S,
            )
        self._had[client] = own
        self._all += more


class BodyLease:
    """The memory of one body."""

    def __init__(self, memory: BodyMemory, client: str) -> None:
        self._memory = memory
        self._client = client
        self.taken = 0

    def grow(self, size: int) -> None:
        """Grow to the body's present size. Raises Problem (429) without room for more."""
        if size > LONG_BODY_BYTES:
            self._memory.take(self._client, size - self.taken)
            self.taken = size
