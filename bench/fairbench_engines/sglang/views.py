"""Views of SGLang's waiting queue and running batch for schedulers.

The view of the queue is a KeptView if SGLang's prefix tree reports changes, or else a LiveView.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import compress, repeat
from operator import add, attrgetter, sub
from typing import Any

from fairbench.core import Request
from fairbench.schedulers.views import (
    ClientLoad,
    ListScan,
    QueueView,
    Running,
    RunningView,
    client_load,
)
from fairbench_engines.kept_matches import EngineQueue
from fairbench_engines.scheduler_host import REQUEST, RUNNING, Tracked
from fairbench_engines.sglang.kept_tree import KeptTree
from fairbench_engines.sglang.match_order import MatchOrderHooks
from fairbench_engines.sglang.preemption import CLIP_MAX_NEW_TOKENS
from fairbench_engines.sglang.requests import OUTPUT_IDS, Req, ids_of, namespace_of

INPUT_TOKENS, MAX_NEW_TOKENS = attrgetter("input_tokens"), attrgetter("max_new_tokens")


class ArmedQueue(list[Req]):
    """A waiting queue whose next iteration yields requests from ``armed``, in scheduler order.

    SGLang admits requests in the loop ``for req in self.waiting_queue``, which has no hook.
    """

    armed: Iterator[Req] | None = None

    def __iter__(self) -> Iterator[Req]:
        order, self.armed = self.armed, None
        return super().__iter__() if order is None else order


class LiveView(QueueView):
    """A WaitingView of SGLang's queue. ``tracked`` maps SGLang's requests to fairbench's records.

    ``sort(refresh)`` returns the queue in SGLang's match order, and ``match(req)`` returns a
    request's number of cached tokens.
    """

    def __init__(
        self,
        sort: Callable[[bool], list[Req]],
        match: Callable[[Req], int],
        running: RunningView,
        tracked: Mapping[Req, Tracked],
        ours: Mapping[Request, Tracked],
    ) -> None:
        super().__init__(running)
        self._sort = sort
        self._match = match
        self._tracked = tracked
        self._ours = ours

    def match_order(self, *, refresh: bool = True) -> ListScan:
        # SGLang's queue may contain requests that the plugin does not know.
        ordered = map(self._tracked.get, self._sort(refresh))
        return ListScan([tracked.request for tracked in ordered if tracked is not None], self)

    def matched_tokens(self, request: Request) -> int:
        return self._match(self._ours[request].theirs)

    def take_in(self, request: Request) -> None:
        """Append an arriving or retracted request to the view."""
        self.enter(request)

    def end_pass(self) -> None:
        """Do nothing, because SGLang's view already excludes admitted requests."""


class KeptView(EngineQueue):
    """A view of the queue for SGLang; only requests whose match may have changed are matched."""

    def __init__(
        self,
        tree: KeptTree,
        running: RunningView,
        order: MatchOrderHooks,
        ours: Mapping[Request, Tracked],
    ) -> None:
        super().__init__(tree, running, lambda request: order.match(ours[request].theirs))
        self._order = order
        self._ours = tree.ours = ours

    def pass_unmatched(self) -> None:
        self._order.unsorted(lambda count: [self._ours[one].theirs for one in self.head(count)])

    def take_in(self, request: Request) -> None:
        """Append an arriving or retracted request to the view."""
        req = self._ours[request].theirs
        ids, apart = ids_of(req), namespace_of(req)
        most = req._compute_max_prefix_len(len(ids))
        self.wait(request, ids, most=most, apart=None if apart == (None, None) else apart)


class SGLangLiveBatch:
    """A RunningView of the SGLang batch that was last passed to ``show_batch``.

    ``would_fit(request, reqs)`` returns whether a request would fit after the release of ``reqs``.
    """

    def __init__(
        self, tracked: Mapping[Any, Tracked], would_fit: Callable[[Request, list[Any]], bool]
    ) -> None:
        self._tracked = tracked
        self._would_fit = would_fit
        self._batch: Any = None
        self._scheduler: Any = None

    def show_batch(self, batch: Any, scheduler: Any = None) -> None:
        """Show the requests of ``batch``, and the free memory of ``scheduler`` if given."""
        self._batch, self._scheduler = batch, scheduler or self._scheduler

    @property
    def _reqs(self) -> list[Any]:
        return [] if self._batch is None else list(self._batch.reqs)

    @property
    def free_tokens(self) -> int:
        if self._scheduler is None:
            return 0
        free: int = self._scheduler.token_to_kv_pool_allocator.available_size()
        evictable: int = self._scheduler.tree_cache.evictable_size()
        return free + evictable

    def __len__(self) -> int:
        return sum(map(self._tracked.__contains__, self._reqs))

    def __iter__(self) -> Iterator[Running]:
        # A step has hundreds of requests, so ``map`` is used: it is faster than a Python loop.
        reqs = self._reqs
        known = list(map(self._tracked.get, reqs))
        requests = list(map(REQUEST, filter(None, known)))
        produced = list(map(len, map(OUTPUT_IDS, compress(reqs, known))))
        held = map(add, map(INPUT_TOKENS, requests), produced)
        left = map(sub, map(MAX_NEW_TOKENS, requests), produced)
        reserved = map(min, left, repeat(CLIP_MAX_NEW_TOKENS))
        return map(RUNNING, zip(requests, produced, held, reserved, strict=True))

    def load(self, client: str) -> ClientLoad:
        return client_load(self, client)

    def would_fit(self, request: Request, without: Collection[Request]) -> bool:
        gone = [r for r in self._reqs if r in self._tracked and self._tracked[r].request in without]
        return self._would_fit(request, gone)
