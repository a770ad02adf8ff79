"""SGLang's running batch as a scheduler sees it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from fairbench.core import Request
from fairbench.live.plugins.sglang.tracked import Tracked
from fairbench.schedulers.views import ClientLoad, Running, client_load

CLIP_MAX_NEW_TOKENS = 4096  # SGLang reserves at most this many output tokens a request


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
