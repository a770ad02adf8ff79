"""A limit on requests under way, and the eviction of a client that has more than others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus

from fairbench.live.router.problem import Problem

RETRY_AFTER_S = 5


@dataclass(slots=True, eq=False)
class Slot:
    """The slot of one request. ``begun`` once the answer has started: then it cannot be evicted.

    ``on_evicted`` is called once on eviction.
    """

    client: str
    on_evicted: Callable[[], None] = lambda: None
    begun: bool = False
    evicted: bool = False

    def begin(self) -> None:
        """Record that the client receives the start of the answer."""
        self.begun = True


class ConcurrencyLimit:
    """A limit of ``most`` requests in flight, and of ``most_each`` per client.

    When all slots are taken, a client with fewer slots (by weight) than another takes one from
    it. The victim is the youngest request without any answer yet, of the client with the most
    slots.
    """

    def __init__(self, most: int, most_each: int, weights: Mapping[str, float]) -> None:
        self._most = most
        self._most_each = most_each
        self._weights = weights
        self._taken: dict[str, dict[Slot, None]] = {}
        self._count = 0

    @contextmanager
    def take(self, client: str) -> Iterator[Slot]:
        """Take a slot until the block ends. Raises Problem (429) if there is none."""
        own = len(self._taken.get(client, ()))
        if own >= self._most_each:
            raise _full(
                f"this client already has {self._most_each} unfinished requests, the limit "
                "per client"
            )
        if self._count >= self._most and not self._evict_for(client, own):
            raise _full(f"the router already has {self._most} unfinished requests, its limit")
        slot = Slot(client)
        self._taken.setdefault(client, {})[slot] = None
        self._count += 1
        try:
            yield slot
        finally:
            if not slot.evicted:
                self._leave(slot)

    def _evict_for(self, client: str, own: int) -> bool:
        """Evict a request of another client for this client; return whether that succeeded."""
        wanted = (own + 1) / self._weight(client)
        by_share = sorted(
            ((len(taken) / self._weight(name), name) for name, taken in self._taken.items()),
            reverse=True,
        )
        for share, name in by_share:
            if share <= wanted:
                return False
            for slot in reversed(self._taken[name]):
                if not slot.begun:
                    self._leave(slot)
                    slot.evicted = True
                    slot.on_evicted()
                    return True
        return False

    def _leave(self, slot: Slot) -> None:
        taken = self._taken[slot.client]
        del taken[slot]
        if not taken:
            del self._taken[slot.client]
        self._count -= 1

    def _weight(self, client: str) -> float:
        return self._weights.get(client, 1.0)


def evicted() -> Problem:
    """Return the answer to an evicted request."""
    return _full(
        "the router is full, and this client has more unfinished requests than others; try "
        "again later"
    )


def _full(why: str) -> Problem:
    return Problem(HTTPStatus.TOO_MANY_REQUESTS, why, retry_after_s=RETRY_AFTER_S)
