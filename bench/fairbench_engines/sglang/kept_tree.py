"""Stored prefix look-ups of waiting requests, updated after changes of SGLang's prefix tree.

SGLang's own code looks up every waiting request in every scheduling pass. The plugin looks up a
request again only if a prefix was inserted or evicted where the request's cached prefix ends. Each
look-up by SGLang marks a cached prefix as used (LRU order). In every pass, the plugin marks the
cached prefixes of all waiting requests as used, in queue order.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from importlib import import_module
from typing import Any

from fairbench.core import Request
from fairbench.schedulers.prefix_tree import IN_BATCH_TOKENS
from fairbench_engines.kept_matches import KeptMatches, Match, Spot, Waiter
from fairbench_engines.scheduler_host import Tracked
from fairbench_engines.sglang.requests import Req, ids_of, namespace_of, prefix_len

POLICY_MODULE = "sglang.srt.managers.schedule_policy"
BATCH_MODULE = "sglang.srt.managers.schedule_batch"
RADIX_MODULE = "sglang.srt.mem_cache.radix_cache"
UNIFIED_MODULE = "sglang.srt.mem_cache.unified_radix_cache"
PARAMS_MODULE = "sglang.srt.mem_cache.base_prefix_cache"
# A tree position is identified by its depth and by the ``KNOWN_BY`` tokens before the position.
KNOWN_BY = 32


class KeptTree(KeptMatches):
    """Stored prefix look-ups of waiting requests; ``find(reqs)`` is SGLang's own look-up."""

    def __init__(self, tree: Any, find: Callable[[list[Req]], Any]) -> None:
        super().__init__()
        self.tree = tree
        # the waiting requests; ``KeptView`` sets this attribute
        self.ours: Mapping[Request, Tracked]
        # function to call after ``touch`` has marked a prefix as used
        self.on_touch: Callable[[Hashable], None] | None = None
        self._find = find
        after(tree, "insert", self._inserted)
        before(tree, "reset", self.lost_all)

    def look_up(self, request: Request) -> Match:
        req = self.ours[request].theirs
        self._find([req])
        depth, ids = prefix_len(req), ids_of(req)
        awaited = _place(ids, depth, namespace_of(req)) if depth < len(ids) else None
        return Match(depth, req.last_node, awaited)

    def _inserted(self, result: Any, params: Any) -> None:
        key, depth = params.key, result.prefix_len
        if depth < len(key.token_ids):
            self.stored(_place(key.token_ids, depth, namespace_of(key)))

    def match_again(self, waiters: list[Waiter]) -> None:
        """Match the given requests, and mark all other matched prefixes as used, in queue order."""
        refresh = self.refresh_stamp
        turns: list[tuple[tuple[int, int], Waiter | None, Spot | None]]
        turns = [(waiter.touched_at(refresh), waiter, None) for waiter in waiters]
        for spot in self._spots.values():
            if spot.depth:
                turns.append((spot.last(refresh).touched_at(refresh), None, spot))
        turns.sort(key=lambda turn: turn[0])
        for _, waiter, matched in turns:
            if waiter is not None:
                self.attach(waiter)
            elif matched is not None:
                self.touch(matched)
                if self.on_touch is not None:
                    self.on_touch(matched.at)

    @abstractmethod
    def touch(self, spot: Spot) -> None:
        """Mark all nodes of a cached prefix as used now."""


class KeptRadixCache(KeptTree):
    """Stored prefix look-ups in SGLang's RadixCache."""

    def __init__(self, tree: Any, find: Callable[[list[Req]], Any]) -> None:
        super().__init__(tree, find)
        self._time = import_module(RADIX_MODULE).time
        before(tree, "_delete_leaf", self.lost)

    def touch(self, spot: Spot) -> None:
        node: Any = spot.at
        now = self._time.monotonic()
        while node is not None:
            node.last_access_time = now
            node = node.parent


class KeptUnifiedCache(KeptTree):
    """Stored prefix look-ups in SGLang's UnifiedRadixCache, which identifies nodes by numbers."""

    def __init__(self, tree: Any, find: Callable[[list[Req]], Any]) -> None:
        super().__init__(tree, find)
        self._key = import_module(RADIX_MODULE).RadixKey
        self._params = import_module(PARAMS_MODULE).MatchPrefixParams
        before(tree, "_evict_device_leaf", self._evicted)

    def _evicted(self, node: Hashable, *_: Any) -> None:
        self.lost(node)

    def touch(self, spot: Spot) -> None:
        req = self.ours[next(iter(spot.waiters)).request].theirs
        extra_key, salt = namespace_of(req)
        # SGLang 0.5.17 has no argument ``cache_salt``.
        named = {"cache_salt": salt} if salt else {}
        key = self._key(ids_of(req), extra_key, limit=spot.depth, **named)
        if hasattr(self.tree, "touch_prefix"):
            self.tree.touch_prefix(key)
        else:  # SGLang before 0.5.22 has no ``touch_prefix``
            walked = self.tree.tree_core.match_prefix(self._params(key=key))
            self.tree._apply_cache_actions(walked.cache_actions)


def kept_tree(policy: Any, chosen: Any, tree: Any) -> KeptTree | None:
    """Return stored prefix look-ups for SGLang, or None if its tree cannot report changes.

    ``policy`` is SGLang's SchedulePolicy. ``chosen`` is SGLang's constant for the policy LPM.
    """
    module = import_module(POLICY_MODULE)
    thresholds = (
        getattr(module, "IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD", None),
        getattr(module, "IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD", None),
    )
    method = getattr(policy, "_compute_prefix_matches", None)
    if (
        thresholds != (IN_BATCH_TOKENS, IN_BATCH_TOKENS)
        or method is None
        or tuple(inspect.signature(method).parameters) != ("waiting_queue", "policy")
        or not hasattr(import_module(BATCH_MODULE).Req, "_compute_max_prefix_len")
        or getattr(tree, "disable", True)
        or is_eagle(tree)
        or tree.supports_fast_match_prefix()
    ):
        return None

    def find(reqs: list[Req]) -> Any:
        return method(reqs, chosen)

    if is_radix(tree):
        return KeptRadixCache(tree, find)
    if is_unified(tree):
        return KeptUnifiedCache(tree, find)
    return None


def is_eagle(tree: Any) -> bool:
    """Return whether the tree matches pairs of tokens for speculative decoding with EAGLE."""
    return bool(getattr(getattr(tree, "tree_core", tree), "is_eagle", False))


def is_radix(tree: Any) -> bool:
    """Return whether the tree has RadixCache's methods for matching, insertion and eviction."""
    plain = import_module(RADIX_MODULE).RadixCache
    names = ("match_prefix", "insert", "evict", "_match_prefix_helper")
    return (
        isinstance(tree, plain)
        and hasattr(tree, "_delete_leaf")
        and all(getattr(type(tree), name, None) is getattr(plain, name, 0) for name in names)
    )


def is_unified(tree: Any) -> bool:
    """Return whether the tree is a UnifiedRadixCache for full attention, in GPU memory only."""
    if not hasattr(tree, "tree_components"):
        return False
    plain = import_module(UNIFIED_MODULE).UnifiedRadixCache
    return (
        type(tree) is plain
        and [component.name for component in tree.tree_components] == ["FULL"]
        and (hasattr(tree, "touch_prefix") or hasattr(tree, "_apply_cache_actions"))
        and hasattr(tree, "_evict_device_leaf")
        and getattr(tree, "linker", None) is None
        and getattr(tree, "cache_controller", None) is None
    )


def _place(ids: Sequence[int], depth: int, namespace: Hashable) -> Hashable:
    """Return a key for the token at ``depth``; different prefixes rarely have equal keys."""
    return depth, array("q", ids[max(0, depth - KNOWN_BY) : depth + 1]).tobytes(), namespace


def before(owner: Any, name: str, hear: Callable[..., None]) -> None:
    """Wrap the method ``name`` of ``owner``: each call first passes its arguments to ``hear``."""
    method = getattr(owner, name)

    def watched(*args: Any, **named: Any) -> Any:
        hear(*args, **named)
        return method(*args, **named)

    setattr(owner, name, watched)


def after(owner: Any, name: str, hear: Callable[..., None]) -> None:
    """After each call of ``owner``'s method ``name``, pass its result and arguments to ``hear``."""
    method = getattr(owner, name)

    def watched(*args: Any, **named: Any) -> Any:
        result = method(*args, **named)
        hear(result, *args, **named)
        return result

    setattr(owner, name, watched)
