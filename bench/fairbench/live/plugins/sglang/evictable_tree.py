"""SGLang's prefix tree as an eviction policy of ours needs it: what it stores, and one leaf less.

A tree is SGLang's RadixCache or UnifiedRadixCache. Its nodes have handles: objects in the first,
numbers in the second.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from importlib import import_module
from typing import Any

from fairbench.errors import UsageError
from fairbench.live.plugins.mirrored_cache import MirroredCache, Prefix
from fairbench.live.plugins.sglang.kept_tree import (
    RADIX_MODULE,
    after,
    before,
    is_radix,
    is_unified,
)
from fairbench.live.plugins.sglang.requests import namespace_of
from fairbench.sim.engine.client_cache import ClaimedNode

BASE_MODULE = "sglang.srt.mem_cache.base_prefix_cache"


class EvictableTree:
    """A prefix tree of SGLang's that reports its changes to a mirror and evicts as the mirror says.

    ``make_mirror(drop)`` returns a fresh mirror. ``evicts(tokens)`` is called where SGLang would
    choose leaves itself; it returns the number of tokens that became free.
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
        self._splits = False  # SGLang now inserts the prompt again, to split the node at its end
        self._in_checkpoint = False
        if is_unified(tree):
            self._drop_theirs, evicting = self._drop_unified, "_evict"
        else:
            self._drop_theirs, evicting = self._drop_radix, "evict"
        self._evict_theirs = getattr(tree, evicting)
        setattr(tree, evicting, self._evict)
        after(tree, "match_prefix", self._matched)
        after(tree, "touch_prefix", self._touched)
        after(tree, "insert", self._inserted)
        before(tree, "checkpoint", self._checkpoint_begins)
        after(tree, "checkpoint", self._checkpoint_ends)
        after(tree, "inc_lock_ref", self._locked)
        after(tree, "dec_lock_ref", self._unlocked)
        after(tree, "reset", lambda _: self._start())
        self._start()

    def _start(self) -> None:
        self.mirror = self._make_mirror(self._drop)
        self.nodes: dict[Hashable, ClaimedNode] = {}
        self._handles: dict[ClaimedNode, Hashable] = {}

    def free(self) -> int:
        """Return the free tokens of the pool, without the cached ones."""
        found: int = self._tree.token_to_kv_pool_allocator.available_size()
        return found

    def touched(self, handle: Hashable) -> None:
        """Handle a use of the prefix that ends at a node, which SGLang was not asked about."""
        self.mirror.touch(self.nodes[handle])

    # SGLang reports.

    def _matched(self, result: Any, params: Any) -> None:
        node = self.mirror.end_of(_prefix(params.key), result.device_prefix_len)
        self._ends(result.last_device_node, node)

    def _touched(self, _: Any, key: Any) -> None:
        self.mirror.touch(self.mirror.matched(_prefix(key), len(key)))

    def _inserted(self, result: Any, params: Any) -> None:
        prefix, length = _prefix(params.key), len(params.key)
        self.mirror.end_of(prefix, result.prefix_len)  # may be in the middle of a node
        node = self.mirror.end_of(prefix, length - length % self._tree.page_size)
        self._ends(result.last_device_node, node, used=not self._splits)
        self._splits = self._in_checkpoint

    def _checkpoint_begins(self, *_: Any, **__: Any) -> None:
        self._in_checkpoint = True

    def _checkpoint_ends(self, *_: Any, **__: Any) -> None:
        self._in_checkpoint = self._splits = False

    def _locked(self, _: Any, handle: Hashable, *__: Any, **___: Any) -> None:
        self.mirror.lock(self.nodes[handle])

    def _unlocked(self, _: Any, handle: Hashable, *__: Any, **___: Any) -> None:
        self.mirror.unlock(self.nodes[handle])

    def _ends(self, handle: Hashable, node: ClaimedNode, *, used: bool = True) -> None:
        self.nodes[handle] = node
        self._handles[node] = handle
        if used:
            self.mirror.touch(node)

    # SGLang is asked.

    def _evict(self, params: Any, *_: Any, **__: Any) -> Any:
        """Evict in the mirror's order, in the place of SGLang's own method."""
        return self._base.EvictResult(num_tokens_evicted=self._evicts(params.num_tokens))

    def _drop(self, node: ClaimedNode) -> None:
        """Have SGLang evict one leaf."""
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
        """Call SGLang's ``evict`` while it sees no other leaf."""
        tree = self._tree
        leaves, tree.evictable_leaves = tree.evictable_leaves, {handle}
        self._evict_theirs(self._base.EvictParams(num_tokens=1))
        leaves.remove(handle)
        tree.evictable_leaves = leaves | tree.evictable_leaves


def _prefix(key: Any) -> Prefix:
    return Prefix(key.token_ids, namespace_of(key))


def check_tree(tree: Any) -> None:
    """Raise UsageError unless SGLang's tree can evict by a policy of ours."""
    if not is_radix(tree) and not is_unified(tree):
        raise UsageError(
            f"SGLang's cache is {type(tree).__name__} with {_parts(tree)}: an eviction policy "
            "of fairbench needs a prefix cache of full attention in GPU memory alone"
        )
    if getattr(tree, "disable", False):
        raise UsageError(
            "--disable-radix-cache leaves nothing for an eviction policy; leave it out"
        )
    if getattr(getattr(tree, "tree_core", tree), "is_eagle", False):
        raise UsageError("speculative decoding by EAGLE is not supported with an eviction policy")


def _parts(tree: Any) -> str:
    return ", ".join(part.name for part in getattr(tree, "tree_components", ())) or "no components"
