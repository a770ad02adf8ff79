"""Cache eviction by fairbench's policies inside SGLang.

A *handle* stands for a node of SGLang's prefix tree. In a RadixCache, a handle is a node object; in
a UnifiedRadixCache, a handle is a number.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fairbench.core import Request
from fairbench.engine.client_cache import ClaimedNode
from fairbench.errors import UsageError
from fairbench.schedulers.base import Setup
from fairbench.schedulers.memory_share import PromptTokens
from fairbench_engines.mirrored_cache import UNKNOWN, MirroredCache, Prefix, held_by_client
from fairbench_engines.sglang.kept_tree import (
    RADIX_MODULE,
    KeptTree,
    after,
    before,
    is_radix,
    is_unified,
)
from fairbench_engines.sglang.release import Hook
from fairbench_engines.sglang.requests import Req, ids_of, namespace_of
from fairbench_load.plugin_config import PluginConfig

BASE_MODULE = "sglang.srt.mem_cache.base_prefix_cache"
Original = Callable[..., Any]


class EvictableTree:
    """A prefix tree of SGLang, and a copy (the mirror), which decides what is evicted.

    ``make_mirror(drop)`` returns an empty mirror, which evicts a leaf from SGLang's tree by
    ``drop(node)``. ``evicts(tokens)`` replaces SGLang's own eviction, and returns the number of
    freed tokens.
    """

    def __init__(
        self,
        tree: Any,
        make_mirror: Callable[[Callable[[ClaimedNode], None]], MirroredCache],
        evicts: Callable[[int], int],
    ) -> None:
        self._tree = tree
        self._make_mirror = make_mirror
        self._evicts = evicts
        self._base = import_module(BASE_MODULE)
        self._key = import_module(RADIX_MODULE).RadixKey
        self._match_theirs = tree.match_prefix
        # whether SGLang inserts a prompt a second time, so that a node ends where the prompt ends
        self._splits = False
        self._in_checkpoint = False
        if is_unified(tree):
            self._drop_theirs, evicting = self._drop_unified, "_evict"
        else:
            self._drop_theirs, evicting = self._drop_radix, "evict"
        self._evict_theirs = getattr(tree, evicting)
        setattr(tree, evicting, self._evict)
        after(tree, "match_prefix", self._matched)
        after(tree, "touch_prefix", self._touch)
        after(tree, "insert", self._inserted)
        before(tree, "checkpoint", lambda *_, **__: self._checkpoint(begins=True))
        after(tree, "checkpoint", lambda *_, **__: self._checkpoint(begins=False))
        after(tree, "inc_lock_ref", lambda _, at, *__, **___: self.mirror.lock(self.nodes[at]))
        after(tree, "dec_lock_ref", lambda _, at, *__, **___: self.mirror.unlock(self.nodes[at]))
        after(tree, "reset", lambda _: self._start())
        self._start()

    def _start(self) -> None:
        self.mirror = self._make_mirror(self._drop)
        self.nodes: dict[Hashable, ClaimedNode] = {}
        self._handles: dict[ClaimedNode, Hashable] = {}

    def free(self) -> int:
        """Return the number of free tokens in the pool; cached tokens are not free."""
        found: int = self._tree.token_to_kv_pool_allocator.available_size()
        return found

    def touched(self, handle: Hashable) -> None:
        """Record that a waiting request has used the prefix that ends at a node."""
        self.mirror.touch(self.nodes[handle])

    def _matched(self, result: Any, params: Any) -> None:
        node = self.mirror.end_of(_prefix(params.key), result.device_prefix_len)
        self._ends(result.last_device_node, node)

    def _touch(self, _: Any, key: Any) -> None:
        self.mirror.touch(self.mirror.matched(_prefix(key), len(key)))

    def _inserted(self, result: Any, params: Any) -> None:
        prefix, length = _prefix(params.key), len(params.key)
        # ``end_of`` splits a node of the mirror (the copy of SGLang's tree) if the cached prefix
        # ends inside the node.
        self.mirror.end_of(prefix, result.prefix_len)
        node = self.mirror.end_of(prefix, length - length % self._tree.page_size)
        self._ends(result.last_device_node, node, used=not self._splits)
        self._splits = self._in_checkpoint

    def _checkpoint(self, *, begins: bool) -> None:
        self._in_checkpoint, self._splits = begins, self._splits and begins

    def _ends(self, handle: Hashable, node: ClaimedNode, *, used: bool = True) -> None:
        self.nodes[handle] = node
        self._handles[node] = handle
        if used:
            self.mirror.touch(node)

    def _evict(self, params: Any, *_: Any, **__: Any) -> Any:
        """Evict tokens in the order of fairbench's eviction policy, instead of SGLang's order."""
        return self._base.EvictResult(num_tokens_evicted=self._evicts(params.num_tokens))

    def _drop(self, node: ClaimedNode) -> None:
        handle = self._handles.pop(node, None)
        if handle is None:
            ids, (extra_key, salt) = self.mirror.prefix_of(node)
            key = self._key(ids, extra_key, cache_salt=salt)
            found = self._match_theirs(self._base.MatchPrefixParams(key=key))
            handle = found.last_device_node
        self.nodes.pop(handle, None)
        self._drop_theirs(handle)

    def _drop_unified(self, handle: Any) -> None:
        self._tree._evict_device_leaf(handle, dict.fromkeys(self._tree.tree_components, 0))

    def _drop_radix(self, handle: Any) -> None:
        """Let SGLang evict the leaf ``handle`` and no other leaf."""
        tree = self._tree
        leaves, tree.evictable_leaves = tree.evictable_leaves, {handle}
        self._evict_theirs(self._base.EvictParams(num_tokens=1))
        leaves.remove(handle)
        tree.evictable_leaves = leaves | tree.evictable_leaves


def _prefix(key: Any) -> Prefix:
    return Prefix(key.token_ids, namespace_of(key))


def check_tree(tree: Any) -> None:
    """Raise UsageError unless SGLang's tree can evict by fairbench's policies."""
    if not is_radix(tree) and not is_unified(tree):
        names = [part.name for part in getattr(tree, "tree_components", ())]
        parts = ", ".join(names) or "no components"
        raise UsageError(
            f"SGLang's cache {type(tree).__name__} with {parts} is not supported by fairbench's "
            "eviction policies; it must be in GPU memory only, and all layers need full attention"
        )


@dataclass(slots=True)
class SGLangHolding:
    """A running request, and its number of tokens outside SGLang's prefix tree."""

    request: Request
    private: int = 0
    decodes: bool = False


class Eviction:
    """An eviction policy of fairbench that replaces SGLang's own eviction."""

    def __init__(self, config: PluginConfig, now_s: Callable[[], float]) -> None:
        self._config = config
        self._now_s = now_s
        self._held: dict[Req, SGLangHolding] = {}
        # number of running requests of each client, in the order of the clients' first requests
        self._decoding: dict[str, int] = {}
        self._watching = False
        self._batch: Any = None  # the batch whose requests need KV memory
        self._tree: EvictableTree

    def watch(self, tree: Any, kept: KeptTree | None) -> None:
        """Let the policy evict from SGLang's tree; ``kept`` holds the waiting requests' matches.

        Raises UsageError if the tree does not support an eviction policy.
        """
        check_tree(tree)
        self._capacity = tree.token_to_kv_pool_allocator.size
        self._page = tree.page_size
        self._kept = kept
        self._tree = EvictableTree(tree, self._make_mirror, self._evict)
        self._watching = True
        after(tree, "checkpoint", self._stored)
        after(tree, "on_release", self._released)
        if kept is not None:
            kept.on_touch = self._tree.touched

    def _make_mirror(self, drop: Callable[[ClaimedNode], None]) -> MirroredCache:
        config = self._config
        policy = config.build_eviction()
        policy.prepare(Setup(config.clients, config.weights, self._capacity))
        self._held.clear()
        self._decoding.clear()
        return MirroredCache(self._capacity, policy, self._now_s, drop, self._page)

    @property
    def _mirror(self) -> MirroredCache:
        self._tree.mirror.free = self._tree.free()
        return self._tree.mirror

    @property
    def mirror(self) -> MirroredCache:
        """A copy of SGLang's prefix tree, whose count of free tokens may be outdated."""
        return self._tree.mirror

    @property
    def splits(self) -> int:
        return self._tree.mirror.splits

    def free_tokens(self) -> int:
        """Return the number of free tokens in SGLang's pool."""
        return self._tree.free()

    def demand(self, req: Req) -> PromptTokens:
        """Return the memory that a waiting request of SGLang would take."""
        ids = ids_of(req)
        total = len(ids)
        if not isinstance(ids, array):
            ids = array("q", ids)
        prefix, most = Prefix(ids, namespace_of(req)), req._compute_max_prefix_len(total)
        cached, used = self.mirror.found(prefix, most)
        return PromptTokens(total - cached, total - used)

    def residency(self) -> Mapping[str, float]:
        """Return each client's tokens in the KV pool, or {} before ``watch`` is called."""
        return held_by_client(self._tree.mirror.residency) if self._watching else {}

    def claim_admitted(self, req: Req, request: Request) -> None:
        """Claim the cached prefix of an admitted request."""
        mirror = self._tree.mirror
        claiming = mirror.claiming(request)
        self._held[req] = SGLangHolding(claiming)
        mirror.claim(self._tree.nodes[req.last_node], claiming)

    def _stored(self, _: Any, req: Req, **named: Any) -> None:
        mine = self._held.get(req) or SGLangHolding(UNKNOWN)
        left = req.kv.kv_allocated_len - req.kv.cache_protected_len
        node, private = self._tree.nodes[req.last_node], mine.private - left
        self._tree.mirror.store(node, mine.request, private, last=req.finished())
        mine.private = left

    def _released(self, _: Any, req: Req, **named: Any) -> None:
        if (mine := self._held.pop(req, None)) is None:
            return
        client = mine.request.client
        self._tree.mirror.residency.add_private(client, -mine.private)
        if mine.decodes:
            self._decoding[client] -= 1
            if not self._decoding[client]:
                del self._decoding[client]

    def by_target(self, batch: str) -> dict[str, Hook]:
        """Map names of SGLang functions to hooks; ``batch`` is the import path of ScheduleBatch."""
        return {
            f"{batch}.prepare_for_extend": Hook(self.extend),
            f"{batch}.prepare_for_decode": Hook(self.decode),
            f"{batch}.check_decode_mem": Hook(self.of_batch),
            f"{batch}.release_req": Hook(self.of_batch, ("idx",)),
        }

    def extend(self, original: Original, batch: Any, *args: Any, **named: Any) -> Any:
        """Wrap ``prepare_for_extend`` to free memory for each request of a prefill batch."""
        mirror = self._mirror
        for req in batch.reqs:
            if (mine := self._held.get(req)) is not None:
                mirror.take(mine.request.client, tokens := req.extend_len)
                mine.private += tokens
        return self.of_batch(original, batch, *args, **named)

    def decode(self, original: Original, batch: Any, *args: Any, **named: Any) -> Any:
        """Wrap ``prepare_for_decode`` to free memory for a token of each running request."""
        for mine in filter(None, map(self._held.get, batch.reqs)):
            mine.private += 1
            if not mine.decodes:
                mine.decodes, client = True, mine.request.client
                self._decoding[client] = self._decoding.get(client, 0) + 1
        self._mirror.decode(self._decoding)
        return self.of_batch(original, batch, *args, **named)

    def of_batch(self, original: Original, batch: Any, *args: Any, **named: Any) -> Any:
        """Wrap a method that may evict tokens; record the batch for which memory is needed."""
        self._batch = batch
        return original(batch, *args, **named)

    def _evict(self, tokens: int) -> int:
        mirror = self._mirror
        before = mirror.free
        reqs = () if self._batch is None else self._batch.reqs
        decoding = Counter(self._held[req].request.client for req in reqs if req in self._held)
        mirror.evict(tokens, decoding)
        return mirror.free - before
