"""SGLang's waiting queue and running batch as a scheduler sees them.

The queue is a LiveView, or a KeptView where SGLang's prefix tree is watched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from fairbench.core import Request
from fairbench.live.plugins.home import Tracked
from fairbench.live.plugins.kept_matches import EngineQueue
from fairbench.live.plugins.sglang.kept_tree import KeptTree
from fairbench.live.plugins.sglang.match_order import MatchOrder
from fairbench.live.plugins.sglang.preemption import CLIP_MAX_NEW_TOKENS
from fairbench.live.plugins.sglang.requests import Req, ids_of, namespace_of
from fairbench.schedulers.list_view import ListScan, QueueView
from fairbench.schedulers.views import ClientLoad, Running, RunningView, client_load


class ArmedQueue(list[Req]):
    """A list that, once armed, is iterated over once in the order a scheduler selects.

    SGLang admits with ``for req in self.waiting_queue``: no hook is needed inside that loop.
    """

    armed: Iterator[Req] | None = None

    def __iter__(self) -> Iterator[Req]:
        order, self.armed = self.armed, None
        return super().__iter__() if order is None else order


class LiveView(QueueView):
    """A WaitingView. ``track`` and ``leave`` keep it equal to SGLang's queue.

    ``sort(refresh)`` returns the queue in match order, SGLang's own; ``match(req)`` returns a
    request's cached tokens.
    """

    def __init__(
        self,
        sort: Callable[[bool], list[Req]],
        match: Callable[[Req], int],
        running: RunningView | None = None,
    ) -> None:
        super().__init__(running)
        self._sort = sort
        self._match = match
        self._reqs: dict[Request, Req] = {}
        self._request_of: dict[Req, Request] = {}

    def match_order(self, *, refresh: bool = True) -> ListScan:
        ordered = self._sort(refresh)
        # A request that the view lacks was admitted in this pass, or is not ours.
        order = [self._request_of[req] for req in ordered if req in self._request_of]
        return ListScan(order, self)

    def matched_tokens(self, request: Request) -> int:
        return self._match(self._reqs[request])

    # The home's side.

    def track(self, request: Request, req: Req) -> None:
        """Append an arrival or a retracted request, and what it is to SGLang."""
        self.enter(request)
        self._reqs[request] = req
        self._request_of[req] = request

    def leave(self, request: Request) -> None:
        super().leave(request)
        del self._request_of[self._reqs.pop(request)]

    def req_of(self, request: Request) -> Req:
        """Return SGLang's object. Raises KeyError if the request is not waiting."""
        return self._reqs[request]

    def end_pass(self) -> None:
        """Do nothing: what was admitted has left."""


class KeptView(EngineQueue):
    """A LiveView that has SGLang match only requests whose match may have changed."""

    def __init__(self, tree: KeptTree, running: RunningView, order: MatchOrder) -> None:
        super().__init__(tree, running, lambda request: order.match(self._reqs[request]))
        self._order = order
        self._reqs: dict[Request, Req] = {}
        self._left: list[Request] = []
        tree.req_of = self.req_of

    def pass_unmatched(self) -> None:
        self._order.unsorted(self._head)

    def _head(self, count: int) -> list[Req]:
        return [self._reqs[request] for request in self.head(count)]

    def track(self, request: Request, req: Req) -> None:
        """Append an arrival or a retracted request, and what it is to SGLang."""
        self._reqs[request] = req
        ids, apart = ids_of(req), namespace_of(req)
        most = req._compute_max_prefix_len(len(ids))
        self.wait(request, ids, most=most, apart=None if apart == (None, None) else apart)

    def leave(self, request: Request) -> None:
        """Take out what was admitted or aborted."""
        self.admit(request)
        self._left.append(request)

    def end_pass(self) -> None:
        super().end_pass()
        for request in self._left:
            del self._reqs[request]
        self._left.clear()

    def req_of(self, request: Request) -> Req:
        """Return SGLang's object of a request that has not left before this pass."""
        return self._reqs[request]


class LiveBatch:
    """A RunningView of the batch that ``look`` was last given, of requests that are ``tracked``.

    ``would_fit(request, reqs)`` is that of the view, of SGLang's own requests.
    """

    def __init__(
        self, tracked: Mapping[Any, Tracked], would_fit: Callable[[Request, list[Any]], bool]
    ) -> None:
        self._tracked = tracked
        self._would_fit = would_fit
        self._batch: Any = None
        self._scheduler: Any = None

    def look(self, batch: Any, scheduler: Any = None) -> None:
        """Use this batch from now on, in this SGLang scheduler or the previous one."""
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
        return sum(req in self._tracked for req in self._reqs)

    def __iter__(self) -> Iterator[Running]:
        for req in self._reqs:
            if (tracked := self._tracked.get(req)) is not None:
                request, produced = tracked.request, len(req.output_ids)
                reserved = min(request.max_new_tokens - produced, CLIP_MAX_NEW_TOKENS)
                yield Running(request, produced, request.input_tokens + produced, reserved)

    def load(self, client: str) -> ClientLoad:
        return client_load(self, client)

    def would_fit(self, request: Request, without: Collection[Request]) -> bool:
        gone = [r for r in self._reqs if r in self._tracked and self._tracked[r].request in without]
        return self._would_fit(request, gone)
