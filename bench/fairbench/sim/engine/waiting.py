"""A simulated worker's waiting queue."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from fairbench.core import Request
from fairbench.errors import RunFailed
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.prefix_tree import Place, place_at
from fairbench.sim.engine.matched_queue import MatchedQueue
from fairbench.sim.prefix_cache import N, PrefixCache
from fairbench.sim.sequence import Sequence

# interval of the LRU touch of the list's head in passes without matching, and its size
TOUCH_EVERY, TOUCH_COUNT = 32, 128


class WaitingQueue(MatchedQueue[N]):
    """The queue before a simulated cache, which it matches and touches as SGLang does."""

    def __init__(
        self,
        cache: PrefixCache[N],
        cache_aware: bool,
        *,
        in_batch: bool = True,
        match_us: float | None = None,
        touches: bool = True,
    ) -> None:
        super().__init__(cache, cache_aware, in_batch=in_batch, match_us=match_us)
        self._tree = cache
        self._touches = touches  # the touched head of the queue, in passes without matching
        self._unmatched_passes = 0

    def matched_now(self, request: Request) -> int:
        return self.match(request)[0].depth

    def match(self, request: Request) -> tuple[N, Place]:
        """Match a candidate (at most its length - 1), touching its path."""
        entry = self.entries[request]
        node, place, limit = entry.node, entry.place, entry.total - 1
        if node is None:
            node, place = self._tree.root, (0, 0)
        # if all tokens are cached, one is still computed
        elif node.depth > limit and node.parent is not None:
            node = node.parent
            place = place_at(entry.prompt, node.depth)
        node, place = self._tree.descend(node, entry.prompt, place, limit)
        self._tree.touch(node)
        return node, place

    def pass_unmatched(self) -> None:
        """Touch the queue's head in some passes. Call this in every pass without matching."""
        if self._touches and self.entries:
            if self._unmatched_passes % TOUCH_EVERY == 0:
                self.touch_head(TOUCH_COUNT)
            self._unmatched_passes += 1

    def touch_head(self, count: int) -> None:
        """Refresh the prefixes of the first ``count`` requests of the list, head last."""
        cache = self._tree
        if self._cache_aware:
            head = [self.entries[request] for request in islice(self._match_scan(), count)]
        else:
            head = list(islice(self._queue.values(), count))
        for entry in reversed(head):
            cache.touch(cache.match(entry.prompt, entry.total)[0])


def retraction_order(
    scheduler: LocalScheduler, waiting: WaitingQueue[N], running: Iterable[Sequence], now_s: float
) -> list[Sequence]:
    """Return running sequences as the scheduler orders their retraction, or raise RunFailed."""
    of_request = {sequence.request: sequence for sequence in running}
    wanted = scheduler.retraction_order(waiting.running, now_s)
    if len(wanted) != len(of_request) or set(wanted) != set(of_request):
        raise RunFailed(
            f"{scheduler.name}: retraction_order must return every running request exactly once"
        )
    return [of_request[request] for request in wanted]
