"""A worker's KV memory: a radix tree with locks and LRU eviction, and private tokens.

Accounting: capacity = free + tree (evictable + locked) + private. Private tokens belong to a
running request and are not in the tree yet: tokens of a prefill in progress, and decoded tokens.
The rules are those of SGLang 0.5.23's RadixCache (docs/appendix/engine.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush

from fairbench.compiled import mypyc_attr
from fairbench.core import Prompt, Request
from fairbench.schedulers.prefix_tree import Place, PrefixTree, path, place_at
from fairbench.sim.kv_node import Access, KVNode, Waiter, Waiters, next_key


@mypyc_attr(allow_interpreted_subclasses=True)
class KVCache(PrefixTree[KVNode]):
    """KV memory of ``capacity`` tokens. ``on_evict(prefix, tokens)`` is called on eviction."""

    knows_clients = False  # whether ``claim``, ``retain`` and ``pin`` do anything

    def __init__(
        self,
        capacity: int,
        on_evict: Callable[[Prompt, int], None] | None = None,
        node_type: type[KVNode] = KVNode,
    ) -> None:
        super().__init__(node_type)
        self.capacity = capacity
        self.free = capacity
        self.evictable = 0
        self.locked = 0
        self.on_evict = on_evict
        # called when a waiter's match has changed
        self.on_moved: Callable[[Waiter], None] | None = None
        self.refresh_stamp = 0  # stamp of the waiting requests' last touch of their prefixes
        self._stamp = 0
        self._created = 0
        # (stamp, access, number, node): most entries differ in the stamp, which is compared quickly
        self._leaves: list[tuple[int, Access, int, KVNode]] = []
        self._latest: Waiter | None = None  # the waiter that was attached last
        self._stored: tuple[Prompt, KVNode] | None = None  # the latest prompt that was locked
        self._matching: Waiter | None = None  # the waiter that is being attached

    # Memory.

    def allocate(self, tokens: int) -> None:
        """Take ``tokens`` for a request, evicting if needed.

        Precondition: enough tokens are evictable.
        """
        if tokens > self.free:
            self.evict(tokens - self.free)
        assert tokens <= self.free, "allocation beyond free + evictable"
        self.free -= tokens

    def release(self, tokens: int) -> None:
        self.free += tokens

    # The same methods with clients' names. ``client_cache`` records the names; here they have no
    # effect.

    def allocate_for(self, client: str, tokens: int) -> None:
        """Take ``tokens`` for a request of the client; an inlined ``allocate``."""
        if tokens > self.free:
            self.evict(tokens - self.free)
        assert tokens <= self.free, "allocation beyond free + evictable"
        self.free -= tokens

    def release_of(self, client: str, tokens: int) -> None:
        self.release(tokens)

    def grow(self, steps: int, requests: Mapping[str, int], size: int) -> None:
        """Take a token per step for each of ``size`` requests; ``requests`` counts by client."""
        tokens = steps * size
        if tokens > self.free:
            self.evict(tokens - self.free)
        assert tokens <= self.free, "allocation beyond free + evictable"
        self.free -= tokens

    def claim(self, node: KVNode, request: Request) -> None:
        """Record that the request uses the path to ``node`` from now on."""

    def retain(self, node: KVNode, request: Request) -> None:
        """Record that the request has finished, and that its path ends at ``node``."""

    def evict(self, tokens: int, requests: Mapping[str, int] | None = None) -> None:
        """Drop whole unlocked leaves, least recently used first; ``requests`` by client want it."""
        freed = 0
        while freed < tokens and (leaf := self._oldest_leaf()) is not None:
            freed += leaf.length
            self._drop(leaf)

    def _oldest_leaf(self) -> KVNode | None:
        while self._leaves:
            _, listed, _, node = heappop(self._leaves)
            node.listed = False
            if node.locks or node.children:
                continue  # listed again when the node is unlocked or loses its children
            if listed == (access := self._access_of(node)):
                return node
            self._list(node, access)
        return None

    def _access_of(self, leaf: KVNode) -> Access:
        """Return the last access, including the touch of each waiting request on its prefix."""
        if not leaf.waiters or leaf.last_access[0] > self.refresh_stamp:
            return leaf.last_access
        waiters = (waiter for group in leaf.waiters.values() for waiter in group)
        return max(leaf.last_access, max(map(self._refreshed, waiters)))

    def _refreshed(self, waiter: Waiter) -> Access:
        return self.refresh_stamp, *waiter.touched_at(self.refresh_stamp)

    def _list(self, node: KVNode, access: Access) -> None:
        node.listed = True
        heappush(self._leaves, (access[0], access, node.number, node))

    def _list_if_leaf(self, node: KVNode) -> None:
        if not (node.listed or node.locks or node.children or node is self.root):
            self._list(node, node.last_access)  # possibly too early; corrected when it is popped

    def _drop(self, leaf: KVNode) -> None:
        if self.on_evict is not None:
            self.on_evict(path(leaf), leaf.length)
        if self._stored is not None and self._stored[1] is leaf:
            self._stored = None
        parent = self.remove(leaf)
        if parent.last_access < leaf.last_access:
            parent.last_access = leaf.last_access
        self.free += leaf.length
        self.evictable -= leaf.length
        if leaf.waiters:
            self._retreat(leaf.waiters, parent)
        self._list_if_leaf(parent)

    def abandon(self) -> None:
        """Remove every node at the end of a run, because Python frees linked nodes slowly."""
        for node in self.nodes():
            node.parent = node.waiters = None
        self.root.children.clear()
        self._leaves.clear()

    # Locks and last uses.

    def touch(self, node: KVNode) -> None:
        """Mark the whole path to ``node`` as used now, but not the part below a cut."""
        self._stamp += 1
        node.last_access = self._stamp, 0, 0

    def lock(self, node: KVNode) -> None:
        """Protect the path to ``node`` from eviction (counted)."""
        while (parent := node.parent) is not None:
            node.locks += 1
            if node.locks > 1:
                return
            self.evictable -= node.length
            self.locked += node.length
            if self.knows_clients:
                self.pin(node, node.length)
            node = parent

    def unlock(self, node: KVNode) -> None:
        while (parent := node.parent) is not None:
            node.locks -= 1
            if node.locks:
                return
            self.evictable += node.length
            self.locked -= node.length
            if self.knows_clients:
                self.pin(node, -node.length)
            if not node.children or self.knows_clients:
                self._list_if_leaf(node)
            node = parent

    def pin(self, node: KVNode, tokens: int) -> None:
        """Record that running requests use ``tokens`` of ``node``; below 0, none does any more."""

    # The tree.

    def insert(
        self, node: KVNode, prompt: Prompt, place: Place, depth: int, *, lock: bool = False
    ) -> tuple[KVNode, int]:
        """Store a prompt from ``node``, which ends at ``place``, to depth ``depth``.

        The caller owns private tokens for the stretch below ``node``; the new part becomes the
        tree's. Returns the end node and how many of those tokens were cached already (the caller
        releases them). ``lock``: move the caller's lock from ``node`` to the end node.
        """
        end = node
        if node.children:
            stored = self._stored
            if stored is not None and stored[0] is prompt and stored[1].depth == depth:
                end = stored[1]  # branches of a program compute the same prompt
            else:
                end, place = self.descend(node, prompt, place, depth)
        cached = end.depth - node.depth
        if end.depth < depth:
            parent, end = end, self.extend(end, prompt, place, depth)
            self._created += 1
            end.number = self._created
            self.evictable += end.length
            if parent.waiters:
                self._advance(parent.waiters, end)
        self.touch(end)
        if not lock:
            self._list_if_leaf(end)
        elif end is not node:
            self.lock(end)
            self.unlock(node)
            self._stored = prompt, end
        return end, cached

    def on_split(self, upper: KVNode, lower: KVNode) -> None:
        self._created += 1
        upper.number = self._created
        upper.locks = 1 if lower.locks else 0
        upper.last_access = lower.last_access
        # SGLang touches a node that matches in part before it cuts it.
        if self._matching is not None:
            lower.last_access = self._refreshed(self._matching)
        else:
            self.touch(lower)

    # Waiting requests, attached where their match ended.

    def refresh(self, waiters: Iterable[Waiter]) -> None:
        """Match these waiting requests; all others also touch their prefixes (``_refreshed``)."""
        self._stamp += 1
        self.refresh_stamp = self._stamp
        for waiter in waiters:
            self.attach(waiter)

    def attach(self, waiter: Waiter) -> None:
        """Match a waiting request at a refresh, from the end of its last match if any.

        ``on_moved`` is called when a new match is needed. Its touch counts from the last refresh
        on.
        """
        start: KVNode | None = waiter.node
        node, place, latest = start or self.root, waiter.place, self._latest
        if start is not None:
            self._unfile(waiter, start)
        elif latest is not None and latest.prompt is waiter.prompt and latest.node is not None:
            # branches of a program wait with the same prompt
            node, place = latest.node, latest.place
        self._matching = waiter
        waiter.node, waiter.place = self.descend(node, waiter.prompt, place, waiter.total)
        self._matching, self._latest = None, waiter
        self._file(waiter, waiter.node)

    def detach(self, waiter: Waiter) -> None:
        """Forget a waiting request; its last touch stays on its path."""
        node = waiter.node
        assert node is not None
        self._unfile(waiter, node)
        waiter.node = None
        access = self._refreshed(waiter)
        if node.last_access < access:
            node.last_access = access

    def _file(self, waiter: Waiter, node: KVNode) -> None:
        if node.waiters is None:
            node.waiters = {}
        key = next_key(waiter)
        if (group := node.waiters.get(key)) is None:
            group = node.waiters[key] = {}
        group[waiter] = None

    def _unfile(self, waiter: Waiter, node: KVNode) -> None:
        assert node.waiters is not None
        key = next_key(waiter)
        group = node.waiters[key]
        del group[waiter]
        if not group:
            del node.waiters[key]

    def _advance(self, waiters: Waiters, child: KVNode) -> None:
        """Notify waiters of the parent whose prompt continues with the new child's key."""
        for waiter in waiters.get(child.key, ()):
            self._moved(waiter)

    def _retreat(self, waiters: Waiters, parent: KVNode) -> None:
        """Move the waiters of a removed leaf back to its parent."""
        for group in waiters.values():
            for waiter in group:
                waiter.node = parent
                waiter.place = place_at(waiter.prompt, parent.depth)
                self._file(waiter, parent)
                self._moved(waiter)

    def _moved(self, waiter: Waiter) -> None:
        if self.on_moved is not None:
            self.on_moved(waiter)
