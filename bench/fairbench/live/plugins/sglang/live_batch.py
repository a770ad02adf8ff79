"""SGLang's running batch as a scheduler sees it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fairbench.core import Request
from fairbench.schedulers.views import ClientLoad, Running, client_load

if TYPE_CHECKING:
    from fairbench.live.plugins.sglang.home import Tracked

CLIP_MAX_NEW_TOKENS = 4096  # SGLang reserves at most this many output tokens a request


class LiveBatch:
    """A RunningView of the batch that ``look`` was last given, of requests that are ``tracked``."""

    def __init__(self, tracked: Mapping[Any, Tracked]) -> None:
        self._tracked = tracked
        self._reqs: list[Any] = []
        self._scheduler: Any = None

    def look(self, scheduler: Any, reqs: list[Any]) -> None:
        """An admission pass of this SGLang scheduler begins, while ``reqs`` run."""
        self._scheduler, self._reqs = scheduler, reqs

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
        return False
