"""The KV memory of an SGLang replica: a radix tree with locks and eviction, and private tokens.

The tokens add up: capacity = free + tree (evictable + locked) + private. Private tokens belong to a
running request and are not in the tree yet: decoded tokens and the tokens of a prefill in progress.
The cache follows the rules of SGLang 0.5.23's RadixCache (docs/appendix/engine.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from typing import Protocol, Self, TypeVar

from fairbench.compiled import mypyc_attr
from fairbench.core import Prompt, Request, new_tuple
from fairbench.schedulers.eviction.policies import LRU, Access, EvictionPolicy, Leaf, Rank
from fairbench.schedulers.params import NoParams
from fairbench.schedulers.prefix_tree import Edge, Node, Place, PrefixTree, path, place_at


class CacheNode(Protocol):
    """A node of a cache: the end of a cached prefix of ``depth`` tokens."""

    @property
    def depth(self) -> int: ...

    @property
    def parent(self) -> Self | None: ...


N = TypeVar("N", bound=CacheNode)


class AttachedRequest(Protocol[N]):
    """A waiting request that is attached to the node at which its last cache match ended."""

    request: Request
    prompt: Prompt
    total: int
    node: N | None
    place: Place

    def touched_at(self, refresh: int) -> tuple[int, int]:
        """Return the request's position in the queue at the refresh with the number ``refresh``."""


class MatchCache(Protocol[N]):
    """A cache for a queue that is sorted by the length of cached prefixes.

    The cache calls ``on_moved`` with each attached request whose cached prefix may have changed. A
    refresh matches waiting requests with the cache again; ``refresh_stamp`` is the time stamp of
    the most recent refresh.
    """

    on_moved: Callable[[AttachedRequest[N]], None] | None
    refresh_stamp: int

    def refresh(self, waiters: Iterable[AttachedRequest[N]]) -> None:
        """Match ``waiters``, and mark the cached prefixes of all attached requests as used."""

    def detach(self, waiter: AttachedRequest[N]) -> None:
        """Detach a waiting request from its tree node."""


class PrefixCache(MatchCache[N], Protocol[N]):
    """A cache in which a simulated worker looks up prefixes and marks them as used."""

    root: N

    def descend(self, node: N, prompt: Prompt, place: Place, limit: int) -> tuple[N, Place]:
        """Follow the prompt from ``node``, which ends at ``place``, down to depth ``limit``."""

    def match(self, prompt: Prompt, limit: int) -> tuple[N, Place]:
        """Follow the prompt down the tree from the root, to a depth of ``limit`` tokens."""

    def touch(self, node: N) -> None:
        """Mark the whole path to ``node`` as used now."""


class KVNode(Node):
    """A node of the prefix tree: a cached part of a prompt.

    A lock or a use of a path is recorded only at the end of the path, which saves time. ``locks``
    counts the locks that end at the node, plus 1 for each child with locks. ``last_access`` is the
    latest use that ended at the node or at an evicted node below it. For a leaf, both values are
    therefore complete.

    A use is a pair: a time stamp and a position in the queue. At a refresh, the prefixes of all
    waiting requests get a use with the same stamp, in the order of the queue.
    """

    __slots__ = ("last_access", "listed", "locks", "number", "waiters")

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        # The code of ``Node.__init__`` is repeated here for speed: a run creates many nodes.
        self.parent = parent
        self.edge = edge
        self.start = 0
        self.length = length
        self.depth = length if parent is None else parent.depth + length
        self.children = {}
        self.locks = 0
        self.last_access: Access = (0, 0, 0)
        # ``number`` counts nodes in order of creation, and decides between leaves of equal rank.
        self.number = 0
        # ``listed`` is true if the heap of leaves has an entry for the node.
        self.listed = False
        self.waiters: Waiters | None = None


KVWaiter = AttachedRequest[KVNode]
# The waiting requests whose cached prefix ends at a node, grouped by the child that would extend
# the prefix. Requests whose whole prompt is cached have the key None.
Waiters = dict[tuple[str, int] | None, dict[KVWaiter, None]]


def next_key(waiter: KVWaiter) -> tuple[str, int] | None:
    """Return the key of the child that would extend the cached prefix; None for a whole prompt."""
    index, offset = waiter.place
    if index == len(waiter.prompt):
        return None
    return waiter.prompt[index].key, offset


DEFAULT_POLICY = LRU(NoParams())


@mypyc_attr(allow_interpreted_subclasses=True)
class KVCache(PrefixTree[KVNode]):
    """A KV memory of ``capacity`` tokens, whose leaves are evicted in the order of ``policy``.

    ``on_evict(prefix, tokens)`` is called when the last ``tokens`` tokens of a prefix are evicted.
    """

    # If ``knows_clients`` is true, the cache counts memory by client, and ``claim``, ``retain`` and
    # ``pin`` have an effect.
    knows_clients = False

    def __init__(
        self,
        capacity: int,
        on_evict: Callable[[Prompt, int], None] | None = None,
        node_type: type[KVNode] = KVNode,
        policy: EvictionPolicy = DEFAULT_POLICY,
    ) -> None:
        super().__init__(node_type)
        self.policy = policy
        self.capacity = capacity
        self.free = capacity
        self.evictable = 0
        self.locked = 0
        self.on_evict = on_evict
        # ``on_moved`` is called with each waiting request whose cached prefix may have changed.
        self.on_moved: Callable[[KVWaiter], None] | None = None
        # ``refresh_stamp`` is the time stamp of the last refresh of the waiting requests' cached
        # prefixes.
        self.refresh_stamp = 0
        self._stamp = 0
        self._created = 0
        # ``_leaves`` is a heap of the tree's leaves by rank and number. The stored rank may be too
        # low.
        self._leaves: list[tuple[Rank, int, KVNode]] = []
        # ``_latest`` is the waiting request that was matched last.
        self._latest: KVWaiter | None = None
        self._stored: tuple[Prompt, KVNode] | None = None  # the prompt whose nodes were locked last
        # ``_matching`` is the waiting request that is being matched now.
        self._matching: KVWaiter | None = None

    # Free and used memory.

    def allocate(self, tokens: int) -> None:
        """Take ``tokens`` tokens for a request, and evict cached tokens if memory is short.

        Precondition: enough tokens are free or can be evicted.
        """
        if tokens > self.free:
            self.evict(tokens - self.free)
        assert tokens <= self.free, "allocation beyond free + evictable"
        self.free -= tokens

    def release(self, tokens: int) -> None:
        self.free += tokens

    # The methods here that take a client have an effect only in ``ClientCache``.

    def allocate_for(self, client: str, tokens: int) -> None:
        """Allocate ``tokens`` tokens for a request of the client; otherwise like ``allocate``."""
        if tokens > self.free:
            self.evict(tokens - self.free)
        assert tokens <= self.free, "allocation beyond free + evictable"
        self.free -= tokens

    def release_of(self, client: str, tokens: int) -> None:
        self.release(tokens)

    def grow(self, steps: int, requests: Mapping[str, int], size: int) -> None:
        """Take one token for each of ``size`` requests in each of ``steps`` decode steps.

        ``requests`` maps each client to its number of requests.
        """
        tokens = steps * size
        if tokens > self.free:
            self.evict(tokens - self.free)
        assert tokens <= self.free, "allocation beyond free + evictable"
        self.free -= tokens

    def claim(self, node: KVNode, request: Request) -> None:
        """Record that the request uses the path to ``node`` from now on."""

    def retain(self, node: KVNode, request: Request) -> None:
        """Record that the request has finished and that its path ends at ``node``."""

    def evict(self, tokens: int, requests: Mapping[str, int] | None = None) -> None:
        """Evict unlocked leaves, each as a whole, until ``tokens`` tokens are free.

        The policy decides the order. ``requests`` maps clients to the numbers of their requests
        that need the memory.
        """
        freed = 0
        while freed < tokens and (leaf := self._next_leaf()) is not None:
            freed += leaf.length
            self._drop(leaf)

    def _next_leaf(self) -> KVNode | None:
        """Remove the leaf with the lowest rank from the heap, and return the leaf."""
        while self._leaves:
            listed, _, node = heappop(self._leaves)
            node.listed = False
            if node.locks or node.children:
                # A node without an entry is added again once it has neither locks nor children.
                continue
            rank = self.policy.rank(new_tuple(Leaf, (self._access_of(node), 0, 0.0, False)))
            if listed == rank:
                return node
            node.listed = True
            heappush(self._leaves, (rank, node.number, node))
        return None

    def _access_of(self, leaf: KVNode) -> Access:
        """Return when a leaf was last used; refreshes of waiting requests count as uses."""
        if not leaf.waiters or leaf.last_access[0] > self.refresh_stamp:
            return leaf.last_access
        waiters = (waiter for group in leaf.waiters.values() for waiter in group)
        return max(leaf.last_access, max(map(self._refreshed, waiters)))

    def _refreshed(self, waiter: KVWaiter) -> Access:
        return self.refresh_stamp, *waiter.touched_at(self.refresh_stamp)

    def _list_if_leaf(self, node: KVNode) -> None:
        if not (node.listed or node.locks or node.children or node is self.root):
            # The node's stored rank may be too low, because it ignores uses by waiting requests.
            node.listed = True
            rank = self.policy.rank(new_tuple(Leaf, (node.last_access, 0, 0.0, False)))
            heappush(self._leaves, (rank, node.number, node))

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

    # These methods lock nodes and record when nodes were last used.

    def touch(self, node: KVNode) -> None:
        """Mark all nodes on the path to ``node`` as used now."""
        self._stamp += 1
        node.last_access = self._stamp, 0, 0

    def lock(self, node: KVNode) -> None:
        """Protect the path to ``node`` from eviction until the matching call of ``unlock``."""
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
        """Record that running requests use ``tokens`` tokens of ``node``.

        If ``tokens`` is negative, running requests no longer use that number of tokens.
        """

    # Changes of the prefix tree.

    def insert(
        self, node: KVNode, prompt: Prompt, place: Place, depth: int, *, lock: bool = False
    ) -> tuple[KVNode, int]:
        """Store a prompt's tokens from ``node``, which ends at ``place``, up to depth ``depth``.

        The caller owns private tokens for the part of the prompt after ``node``. Tokens that are
        not in the tree yet become tokens of the tree.

        Args:
            node: Node at which the known prefix of the prompt ends.
            prompt: The whole prompt, which begins with the known prefix.
            place: Position in the prompt at which ``node`` ends.
            depth: Number of tokens of the prompt to store.
            lock: Whether to move the caller's lock from ``node`` to the end node.

        Returns:
            The end node, and the number of private tokens that were already cached as other copies.
            The caller must release these private tokens.
        """
        end = node
        if node.children:
            stored = self._stored
            if stored is not None and stored[0] is prompt and stored[1].depth == depth:
                end = stored[1]  # The parallel branches of a program often have the same prompt.
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
        # When a prompt matches only a part of a node, SGLang marks the whole node as used before it
        # cuts the node.
        if self._matching is not None:
            lower.last_access = self._refreshed(self._matching)
        else:
            self.touch(lower)

    # Each waiting request is attached to the node at which its cached prefix ends.

    def refresh(self, waiters: Iterable[KVWaiter]) -> None:
        """Match the given waiting requests with the cache again.

        A refresh also counts as a use of the cached prefixes of all other waiting requests; that
        use is computed only when it is needed (``_refreshed``).
        """
        self._stamp += 1
        self.refresh_stamp = self._stamp
        for waiter in waiters:
            self.attach(waiter)

    def attach(self, waiter: KVWaiter) -> None:
        """Match a waiting request at a refresh, starting at the node where its last match ended.

        A request that was never matched starts at the root. ``on_moved`` is called later, when the
        request must be matched again.
        """
        start: KVNode | None = waiter.node
        node, place, latest = start or self.root, waiter.place, self._latest
        if start is not None:
            self._unfile(waiter, start)
        elif latest is not None and latest.prompt is waiter.prompt and latest.node is not None:
            # Parallel calls of one program often wait at the same time with the same prompt.
            node, place = latest.node, latest.place
        self._matching = waiter
        waiter.node, waiter.place = self.descend(node, waiter.prompt, place, waiter.total)
        self._matching, self._latest = None, waiter
        self._file(waiter, waiter.node)

    def detach(self, waiter: KVWaiter) -> None:
        """Detach a waiting request, and record its last use of the path at its node."""
        node = waiter.node
        assert node is not None
        self._unfile(waiter, node)
        waiter.node = None
        access = self._refreshed(waiter)
        if node.last_access < access:
            node.last_access = access

    def _file(self, waiter: KVWaiter, node: KVNode) -> None:
        if node.waiters is None:
            node.waiters = {}
        key = next_key(waiter)
        if (group := node.waiters.get(key)) is None:
            group = node.waiters[key] = {}
        group[waiter] = None

    def _unfile(self, waiter: KVWaiter, node: KVNode) -> None:
        assert node.waiters is not None
        key = next_key(waiter)
        group = node.waiters[key]
        del group[waiter]
        if not group:
            del node.waiters[key]

    def _advance(self, waiters: Waiters, child: KVNode) -> None:
        """Report the waiting requests at a node whose prompts continue with its new child."""
        for waiter in waiters.get(child.key, ()):
            self._moved(waiter)

    def _retreat(self, waiters: Waiters, parent: KVNode) -> None:
        """Attach the waiting requests of a removed leaf to its parent."""
        for group in waiters.values():
            for waiter in group:
                waiter.node = parent
                waiter.place = place_at(waiter.prompt, parent.depth)
                self._file(waiter, parent)
                self._moved(waiter)

    def _moved(self, waiter: KVWaiter) -> None:
        if self.on_moved is not None:
            self.on_moved(waiter)
