"""The assumed cache: an upper bound of the prompts sent to a worker that it still caches."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from heapq import heapify

from fairbench.core import Prompt, prompt_tokens
from fairbench.sim.engine.kv_cache import KVCache

# If events report evictions, the assumed cache must not evict earlier: the pool only bounds memory.
FOLLOWED_SLACK = 2


class _LosingCache(KVCache):
    """A simulated cache that also loses the blocks that a worker reports as evicted."""

    def __init__(self, capacity: int, on_evict: Callable[[Prompt, int], None]) -> None:
        super().__init__(capacity, on_evict)
        self._lost = 0  # nodes that are still listed among the leaves

    def lose(self, prefix: Prompt, tokens: int) -> None:
        """Drop the last ``tokens`` of a prefix, unless a longer prompt is known to follow."""
        total = prompt_tokens(prefix)
        start = total - tokens
        self.match(prefix, start)  # this splits the tree there
        node, _ = self.match(prefix, total)
        heard, self.on_evict = self.on_evict, None
        while node.depth > start and not node.children:
            parent = node.parent
            assert parent is not None
            self._drop(node)
            node.locks, node.edge = 1, ()  # so that its entry among the leaves is skipped
            self._lost += node.listed
            node = parent
        self.on_evict = heard
        if 2 * self._lost > len(self._leaves):
            self._leaves = [entry for entry in self._leaves if not entry[-1].locks]
            heapify(self._leaves)
            self._lost = 0


class AssumedCache:
    """A simulated cache as large as the worker's pool, filled with the prompts it finished.

    A worker's own events report evictions sooner and better. The assumed cache bounds a router's
    memory without events, with approximate tokens, and for prompts that were never stored.
    ``on_evict(prefix, tokens)`` is called for tokens that can no longer be cached. Waiting prompts
    take no space yet: a queue may be longer than the pool, and would evict tokens that are really
    cached.
    """

    def __init__(self, pool_tokens: int, on_evict: Callable[[Prompt, int], None]) -> None:
        self._cache = _LosingCache(pool_tokens, on_evict)
        self._on_evict = on_evict

    def touch(self, prompt: Prompt) -> None:
        """Record a prompt sent to the worker, which keeps the cached part."""
        node, _ = self._cache.match(prompt, prompt_tokens(prompt))
        self._cache.touch(node)

    def add(self, prompt: Prompt) -> None:
        """Record that the worker has finished a request with this prompt."""
        cache, tokens = self._cache, prompt_tokens(prompt)
        if tokens > cache.capacity:  # the worker will refuse it
            self._on_evict(prompt, tokens)
            return
        node, place = cache.match(prompt, tokens)
        cache.lock(node)
        cache.allocate(tokens - node.depth)
        cache.unlock(node)
        cache.insert(node, prompt, place, tokens)

    def lose(self, prefix: Prompt, tokens: int) -> None:
        """Record that the worker has evicted the last ``tokens`` of a prefix."""
        self._cache.lose(prefix, tokens)

    def clear(self) -> None:
        self._cache.evict(self._cache.capacity)


class AssumedCaches(dict[int, AssumedCache]):
    """The assumed caches by worker; ``on_evict(worker, prefix, tokens)``.

    ``followed`` are the workers whose KV events are followed.
    """

    def __init__(
        self,
        pool_tokens: int,
        followed: Collection[int],
        on_evict: Callable[[int, Prompt, int], None],
    ) -> None:
        super().__init__()
        self._pool_tokens = pool_tokens
        self._followed = set(followed)
        self._on_evict = on_evict

    def renew(self, worker: int) -> None:
        """Give a new or restarted worker an empty cache; report no evictions."""
        slack = FOLLOWED_SLACK if worker in self._followed else 1
        self[worker] = AssumedCache(slack * self._pool_tokens, partial(self._on_evict, worker))

    def follow(self, worker: int, follows: bool) -> None:
        """Set whether the worker's events are followed; its cache is taken to be empty."""
        if worker in self:
            self[worker].clear()
            (self._followed.add if follows else self._followed.discard)(worker)
            self.renew(worker)
