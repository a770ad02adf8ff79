"""Matches of waiting requests with an engine's cache, kept until changes of the cache affect them.

The cost of sorting an engine's queue by match length is proportional to the changes of the cache.
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
from fairbench.schedulers.token_pages import prompt_apart
from fairbench.schedulers.views import RunningView

NO_OUTPUT = Segment("", 0)  # The queue reads no outputs, so this output is a placeholder.


class Match(NamedTuple):
    """The result of looking up a prompt in an engine's prefix cache.

    ``depth`` is the number of cached tokens of the prompt. ``at`` identifies the place in the tree
    at which the cached prefix ends. ``awaited`` identifies the next part of the prompt, which would
    extend the match if the cache had this part. If the match covers the whole prompt, ``awaited``
    is None.
    """

    depth: int
    at: Hashable
    awaited: Hashable | None


class Spot:
    """The end of a cached prefix, and the waiting requests whose match ends there.

    ``latest`` is the last of the waiting requests in the order of the queue, or None if unknown.
    """

    parent: Spot | None = None  # Only the simulated engine uses this field.

    def __init__(self, depth: int, at: Hashable) -> None:
        self.depth = depth
        self.at = at
        # ``waiters`` holds, for each waiting request, the part of its prompt that would extend its
        # match.
        self.waiters: dict[Waiter, Hashable | None] = {}
        self.latest: Waiter | None = None

    def last(self, refresh: int) -> Waiter:
        """Return the waiting request that is last in the order of this refresh."""
        if self.latest is None:
            self.latest = max(self.waiters, key=lambda waiter: waiter.touched_at(refresh))
        return self.latest


Waiter = AttachedRequest[Spot]


class KeptMatches(ABC):
    """A MatchCache that looks up a prompt in the engine's cache only if its match may have changed.

    A subclass looks up a request, and calls ``stored`` and ``lost`` when the cache changes. An
    unnecessary call of ``stored`` or ``lost`` costs only a look-up. If a call of ``stored`` or
    ``lost`` is missing, an outdated match stays in the order of the queue.
    """

    def __init__(self) -> None:
        self.on_moved: Callable[[Waiter], None] | None = None
        self.refresh_stamp = 0
        self._spots: dict[Hashable, Spot] = {}
        self._awaiting: dict[Hashable, dict[Waiter, None]] = {}

    @abstractmethod
    def look_up(self, request: Request) -> Match:
        """Return the match of a waiting request by the engine's own look-up."""

    def stored(self, part: Hashable) -> None:
        """Handle a newly cached part of a prompt, which lengthens the matches of some requests."""
        self._moved(self._awaiting.get(part, ()))

    def lost(self, at: Hashable) -> None:
        """Handle the eviction of the prefix that ends at the match position ``at``."""
        if (spot := self._spots.get(at)) is not None:
            self._moved(spot.waiters)

    def lost_all(self) -> None:
        """Handle the fact that the cache was emptied."""
        for spot in self._spots.values():
            self._moved(spot.waiters)

    def _moved(self, waiters: Iterable[Waiter]) -> None:
        if self.on_moved is not None:
            for waiter in waiters:
                self.on_moved(waiter)

    # The queue calls the methods of this section (the interface ``MatchCache``).

    def refresh(self, waiters: Iterable[Waiter]) -> None:
        self.refresh_stamp += 1
        changed = list(waiters)
        for waiter in changed:
            self.detach(waiter)
        self.match_again(changed)

    def match_again(self, waiters: list[Waiter]) -> None:
        """Match the given waiting requests, which have no match position yet."""
        for waiter in waiters:
            self.attach(waiter)

    def attach(self, waiter: Waiter) -> None:
        """Match a waiting request that has no match position yet."""
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
        """Handle a new match position, which is the end of the request's cached prefix."""

    def closed(self, spot: Spot) -> None:
        """Handle a match position that no waiting request uses any more."""

    def detach(self, waiter: Waiter) -> None:
        """Forget the match position of a waiting request.

        If a request has no match position, nothing happens.
        """
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
        """Handle a change of the queue position of a request that has a match position."""
        if (spot := waiter.node) is None:
            return
        latest, following = spot.latest, self.refresh_stamp + 1
        if latest is waiter:
            spot.latest = None  # The request may have moved to the front of the queue.
        elif latest is None:
            if len(spot.waiters) == 1:
                spot.latest = waiter
        elif waiter.touched_at(following) > latest.touched_at(following):
            spot.latest = waiter


class EngineQueue(MatchedQueue[Spot]):
    """The simulator's queue in match order over an engine's cache.

    ``matched(request)`` returns the request's cached tokens by the engine's own look-up, which the
    engine makes before an admission.
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
        """Add a request that arrives, or that has lost its memory, with the prompt ``token_ids``.

        The match of a request has at most ``most`` tokens, by default all tokens except the last.
        ``apart`` is the key that separates equal tokens of two requests in the cache. The request
        goes to the tail of the queue, or to the head with ``first``.
        """
        waiting = Waiting(request, NO_OUTPUT, 0, lambda _: None)
        # Only the first tokens are compared, to find requests that share a prefix without a match
        # in the cache.
        waiting.prompt = prompt_apart(token_ids[:IN_BATCH_TOKENS], apart)
        waiting.total = len(token_ids) if most is None else most + 1
        self.enter(waiting, first=first)

    def look_again(
        self, request: Request, token_ids: Sequence[int], apart: Hashable = None
    ) -> None:
        """Match a waiting request again, because its prompt has become ``token_ids``."""
        entry = self.entries[request]
        entry.prompt = prompt_apart(token_ids[:IN_BATCH_TOKENS], apart)
        entry.total = len(token_ids)
        self._on_moved(entry)

    def leave(self, request: Request) -> None:
        """Remove requests that were admitted or aborted from the queue."""
        self.admit(request)

    def head(self, count: int) -> list[Request]:
        """Return the first requests in the match order of the last refresh."""
        return list(islice(self._match_scan(), count))

    def _place(self, entry: Entry[Spot], key: int, rank: int) -> None:
        super()._place(entry, key, rank)
        self._matches.placed(entry)
