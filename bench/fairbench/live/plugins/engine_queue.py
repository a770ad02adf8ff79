"""An engine's waiting queue as a cache-aware scheduler sees it, at the cost of what has changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import islice

from fairbench.core import Request, Segment
from fairbench.live.plugins.kept_matches import KeptMatches, Spot
from fairbench.schedulers.prefix_tree import IN_BATCH_TOKENS
from fairbench.schedulers.token_pages import segments_of
from fairbench.schedulers.views import RunningView
from fairbench.sim.engine.matched_queue import MatchedQueue
from fairbench.sim.engine.scans import Entry
from fairbench.sim.sequence import Sequence as Waiting

NO_OUTPUT = Segment("", 0)  # a queue does not look at it


class EngineQueue(MatchedQueue[Spot]):
    """The simulator's queue in match order over an engine's cache.

    ``matched(request)`` returns the cached tokens of what would be prefilled, by the engine's own
    look-up before an admission.
    """

    def __init__(
        self,
        matches: KeptMatches,
        running: RunningView,
        matched: Callable[[Request], int],
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
        """Take in an arrival or a request that has lost its memory.

        Args:
            request: The request.
            token_ids: All that would be prefilled.
            most: The most tokens that a match may have, all but one by default.
            apart: What keeps equal tokens of two requests apart in the cache.
            first: Whether the request goes to the head of the queue, not to the tail.
        """
        waiting = Waiting(request, NO_OUTPUT, 0, lambda _: None)
        # Only the first tokens are looked at, to see which cold requests have them in common.
        head = segments_of(token_ids[:IN_BATCH_TOKENS])
        waiting.prompt = head if apart is None else (Segment(repr(apart), 0), *head)
        waiting.total = len(token_ids) if most is None else most + 1
        self.enter(waiting, first=first)

    def head(self, count: int) -> list[Request]:
        """Return the first requests in match order, as the last refresh left it."""
        return list(islice(self._match_scan(), count))

    def _place(self, entry: Entry[Spot], key: int, rank: int) -> None:
        super()._place(entry, key, rank)
        self._matches.placed(entry)
