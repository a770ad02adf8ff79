"""Stored results of looking up the prompts of waiting requests in an engine's prefix cache.

Stored results make it fast to sort a queue by cached tokens. A prompt is looked up again only if
the prefix cache has changed at the end of the prompt's cached prefix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from fairbench.core import Request, Segment
from fairbench.engine.kv_cache import AttachedRequest
from fairbench.engine.sequence import Sequence as Waiting
from fairbench.engine.waiting_queue import Entry, MatchedQueue
from fairbench.schedulers.prefix_tree import IN_BATCH_TOKENS
from fairbench.schedulers.views import RunningView
from fairbench_load.token_pages import prompt_apart

NO_OUTPUT = Segment("", 0)  # a placeholder, because the queue reads no outputs


class Match(NamedTuple):
    """The result of looking up a prompt in an engine's prefix cache.

    ``depth`` is the number of cached tokens. ``at`` identifies where in the prefix tree the cached
    prefix ends. ``awaited`` identifies the part of the prompt after the cached prefix, or is None
    if the whole prompt is cached.
    """

    depth: int
    at: Hashable
    awaited: Hashable | None


class Spot:
    """A position in the prefix tree, and the waiting requests whose cached prefix ends there.

    ``latest`` is the waiting request that is last in the order of the queue, or None if unknown.
    """

    parent: Spot | None = None  # used only by the simulated engine

    def __init__(self, depth: int, at: Hashable) -> None:
        self.depth = depth
        self.at = at
        # the next part of each waiting request's prompt, or None if the whole prompt is cached
        self.waiters: dict[Waiter, Hashable | None] = {}
        self.latest: Waiter | None = None

    def last(self, refresh: int) -> Waiter:
        """Return the request that is last in the queue as sorted by sort number ``refresh``."""
        if self.latest is None:
            self.latest = max(self.waiters, key=lambda waiter: waiter.touched_at(refresh))
        return self.latest


Waiter = AttachedRequest[Spot]


class KeptMatches(ABC):
    """A MatchCache that looks up a prompt again only if its match may have changed.

    A subclass defines the look-up, and calls ``stored`` and ``lost`` when the engine's cache
    changes. Each cache change must be reported; a report without a change costs only one look-up.
    """

    def __init__(self) -> None:
        self.on_moved: Callable[[Waiter], None] | None = None
        self.refresh_stamp = 0
        self._spots: dict[Hashable, Spot] = {}
        self._awaiting: dict[Hashable, dict[Waiter, None]] = {}

    @abstractmethod
    def look_up(self, request: Request) -> Match:
        """Look up a waiting request's prompt in the prefix cache with the engine's own code."""

    def stored(self, part: Hashable) -> None:
        """Handle a newly cached part of a prompt, which may lengthen requests' matches."""
        self._moved(self._awaiting.get(part, ()))

    def lost(self, at: Hashable) -> None:
        """Handle the eviction of the cached prefix that ends at the tree position ``at``."""
        if (spot := self._spots.get(at)) is not None:
            self._moved(spot.waiters)

    def lost_all(self) -> None:
        """Handle a reset that empties the whole cache."""
        for spot in self._spots.values():
            self._moved(spot.waiters)

    def _moved(self, waiters: Iterable[Waiter]) -> None:
        if self.on_moved is not None:
            for waiter in waiters:
                self.on_moved(waiter)

    # The following methods implement ``MatchCache``, which the queue calls.

    def refresh(self, waiters: Iterable[Waiter]) -> None:
        self.refresh_stamp += 1
        changed = list(waiters)
        for waiter in changed:
            self.detach(waiter)
        self.match_again(changed)

    def match_again(self, waiters: list[Waiter]) -> None:
        """Look up the cached prefix of each given waiting request, which has no stored match."""
        for waiter in waiters:
            self.attach(waiter)

    def attach(self, waiter: Waiter) -> None:
        """Look up the cached prefix of a waiting request that has no valid stored match."""
        depth, at, awaited = self.look_up(waiter.request)
        spot = self._spots.get(at)
        if spot is None:
            spot = self._spots[at] = Spot(depth, at)
            self.opened(spot, waiter.request)
        spot.waiters[waiter] = awaited
        waiter.node = spot
        self.placed(waiter)
        if awaited is not None:
            self._awaiting.setdefault(awaited, {})[waiter] = None

    def opened(self, spot: Spot, request: Request) -> None:
        """Do nothing; a subclass may act when ``spot`` gets its first waiting request."""

    def closed(self, spot: Spot) -> None:
        """Do nothing; a subclass may act when ``spot`` has lost its last waiting request."""

    def detach(self, waiter: Waiter) -> None:
        """Forget where the cached prefix of a waiting request ends."""
        if (spot := waiter.node) is None:
            return
        waiter.node = None
        awaited = spot.waiters.pop(waiter)
        if spot.latest is waiter:
            spot.latest = None
        if not spot.waiters:
            del self._spots[spot.at]
            self.closed(spot)
        if awaited is not None:
            group = self._awaiting[awaited]
            del group[waiter]
            if not group:
                del self._awaiting[awaited]

    def placed(self, waiter: Waiter) -> None:
        """Update ``Spot.latest`` after a request has moved in the queue."""
        if (spot := waiter.node) is None:
            return
        latest, following = spot.latest, self.refresh_stamp + 1
        if latest is waiter:
            spot.latest = None  # ``last`` searches again, because another request may be last
        elif latest is None:
            if len(spot.waiters) == 1:
                spot.latest = waiter
        elif waiter.touched_at(following) > latest.touched_at(following):
            spot.latest = waiter


class EngineQueue(MatchedQueue[Spot]):
    """A simulated queue, sorted by each prompt's cached tokens in an engine's prefix cache.

    ``matched(request)`` returns the number of cached tokens that the engine finds at an admission.
    """

    def __init__(
        self, matches: KeptMatches, running: RunningView, matched: Callable[[Request], int]
    ) -> None:
        super().__init__(matches, cache_aware=True)
        self.running = running
        self._matches = matches
        self._matched = matched

    def matched_now(self, request: Request) -> int:
        return self._matched(request)

    def wait(
        self,
        request: Request,
        token_ids: Sequence[int],
        *,
        most: int | None = None,
        apart: Hashable = None,
        first: bool = False,
    ) -> None:
        """Add an arriving or retracted request with the prompt ``token_ids``.

        The request joins the tail of the queue or, with ``first``, the head. The match has at most
        ``most`` tokens; by default, all tokens but the last may match. Requests with equal tokens
        but different values of ``apart`` have separate cache entries.
        """
        waiting = Waiting(request, NO_OUTPUT, 0, lambda _: None)
        # The first tokens of a prompt show whether waiting requests share an uncached prefix.
        waiting.prompt = prompt_apart(token_ids[:IN_BATCH_TOKENS], apart)
        waiting.total = len(token_ids) if most is None else most + 1
        self.enter(waiting, first=first)

    def look_again(
        self, request: Request, token_ids: Sequence[int], apart: Hashable = None
    ) -> None:
        """Match a request with the prefix cache again; its prompt is now ``token_ids``."""
        entry = self.entries[request]
        entry.prompt = prompt_apart(token_ids[:IN_BATCH_TOKENS], apart)
        entry.total = len(token_ids)
        self._on_moved(entry)

    def leave(self, request: Request) -> None:
        """Remove an admitted or aborted request from the queue."""
        self.admit(request)

    def head(self, count: int) -> list[Request]:
        """Return the first ``count`` requests of the queue, as last sorted by cached tokens."""
        return list(islice(self._match_scan(), count))

    def _place(self, entry: Entry[Spot], key: int, rank: int) -> None:
        super()._place(entry, key, rank)
        self._matches.placed(entry)
