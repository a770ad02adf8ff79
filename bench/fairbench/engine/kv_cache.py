"""The KV memory of an SGLang replica: a prefix tree with locks, and tokens outside the tree.

The capacity equals free + tree (evictable + locked) + private tokens. Private tokens are not yet in
the tree: a running request's decoded tokens, and the tokens of a prefill in progress. The cache
follows the rules of SGLang 0.5.23's RadixCache (docs/appendix/engine.md).
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
    """A node of a prefix cache, which stands for a cached prefix of ``depth`` tokens."""

    @property
    def depth(self) -> int: ...

    @property
    def parent(self) -> Self | None: ...


N = TypeVar("N", bound=CacheNode)


class AttachedRequest(Protocol[N]):
    """A waiting request that is attached to the node at which its cached prefix ends."""

    request: Request
    prompt: Prompt
    total: int
    node: N | None
    place: Place

    def touched_at(self, refresh: int) -> tuple[int, int]:
        """Return the request's queue position (key, rank) at refresh number ``refresh``."""


class MatchCache(Protocol[N]):
    """A cache that supports a queue sorted by the length of cached prefixes.

    The cache calls ``on_moved`` with each attached request whose cached prefix may have changed. A
    refresh matches waiting requests with the cache again. ``refresh_stamp`` is the time stamp of
    the latest refresh.
    """

    on_moved: Callable[[AttachedRequest[N]], None] | None
    refresh_stamp: int

    def refresh(self, waiters: Iterable[AttachedRequest[N]]) -> None:
        """Match ``waiters`` with the cache; mark the prefixes of attached requests as just used."""

    def detach(self, waiter: AttachedRequest[N]) -> None:
        """Detach a waiting request from its tree node."""


class PrefixCache(MatchCache[N], Protocol[N]):
    """A prefix cache of a simulated worker."""

    root: N

    def descend(self, node: N, prompt: Prompt, place: Place, limit: int) -> tuple[N, Place]:
        """Walk along the prompt from ``node`` at position ``place`` to at most token ``limit``."""

    def match(self, prompt: Prompt, limit: int) -> tuple[N, Place]:
        """Follow the prompt from the root down to depth ``limit``."""

    def touch(self, node: N) -> None:
        """Mark the whole path to ``node`` as used now."""


class KVNode(Node):
    """A node of the prefix tree: a cached part of a prompt.

    To save time, a lock or a use of a path is recorded only at the path's last node. ``locks``
    counts the locked paths that end at this node, and the child nodes with locks. ``last_access``
    is the latest use of a path that ends at this node, or at an evicted node below it. ``locks``
    and ``last_access`` are exact for leaves, and lower bounds for other nodes.

    A use of a node is recorded as a time stamp and a position in the queue. Uses that one pass
    records for all waiting requests have equal time stamps and different queue positions.
    """

    __slots__ = ("last_access", "listed", "locks", "number", "waiters")

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        # The body of ``Node.__init__`` is copied here for speed, because a run creates many nodes.
        self.parent = parent
        self.edge = edge
        self.start = 0
        self.length = length
        self.depth = length if parent is None else parent.depth + length
        self.children = {}
        self.locks = 0
        self.last_access: Access = (0, 0, 0)
        # ``number`` is the node's position in the order of creation, which orders leaves of equal
        # rank.
        self.number = 0
        self.listed = False
        self.waiters: Waiters | None = None


KVWaiter = AttachedRequest[KVNode]
# A node's ``Waiters`` are the waiting requests whose cached prefix ends at the node, grouped by
# their first uncached token (``next_key``). The key None groups requests without an uncached token.
Waiters = dict[tuple[str, int] | None, dict[KVWaiter, None]]


def next_key(waiter: KVWaiter) -> tuple[str, int] | None:
    """Return the segment key and offset of the first uncached token, or None if all are cached."""
    index, offset = waiter.place
    if index == len(waiter.prompt):
        return None
    return waiter.prompt[index].key, offset


DEFAULT_POLICY = LRU(NoParams())


@mypyc_attr(allow_interpreted_subclasses=True)
class KVCache(PrefixTree[KVNode]):
    """A KV memory of ``capacity`` tokens that evicts leaves in the order of ``policy``.

    The cache calls ``on_evict(prefix, tokens)`` when it evicts the last ``tokens`` tokens of a
    prefix.
    """

    # If ``knows_clients`` is true, the cache counts memory by client. If ``knows_clients`` is
    # false, ``claim``, ``retain`` and ``pin`` do nothing.
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
        self.refresh_stamp = 0
        self._stamp = 0
        self._created = 0
        # ``_leaves`` is a heap of leaves by eviction rank; a rank in the heap may be too low.
        self._leaves: list[tuple[Rank, int, KVNode]] = []
        self._latest: KVWaiter | None = None
        self._stored: tuple[Prompt, KVNode] | None = None
        self._matching: KVWaiter | None = None

    # Memory

    def allocate(self, tokens: int) -> None:
        """Allocate memory for ``tokens`` tokens, and evict cached tokens if memory is short.

        Precondition: enough tokens are free or can be evicted.
        """
        if tokens > self.free:
            self.evict(tokens - self.free)
        assert tokens <= self.free, "allocation beyond free + evictable"
        self.free -= tokens

    def release(self, tokens: int) -> None:
        self.free += tokens

    # Only a ``ClientCache`` counts memory by client.

    def allocate_for(self, client: str, tokens: int) -> None:
        """Allocate ``tokens`` tokens for a request of the client (see ``allocate``)."""
        if tokens > self.free:
            self.evict(tokens - self.free)
        assert tokens <= self.free, "allocation beyond free + evictable"
        self.free -= tokens

    def release_of(self, client: str, tokens: int) -> None:
        self.release(tokens)

    def grow(self, steps: int, requests: Mapping[str, int], size: int) -> None:
        """Allocate KV memory for the outputs of ``size`` requests over ``steps`` decode steps.

        ``requests`` maps each client to its number of requests.
        """
        tokens = steps * size
        if tokens > self.free:
            self.evict(tokens - self.free)
        assert tokens <= self.free, "allocation beyond free + evictable"
        self.free -= tokens

    def claim(self, node: KVNode, request: Request) -> None:
        """Record that the request uses the path to ``node``."""

    def retain(self, node: KVNode, request: Request) -> None:
        """Record that a request has finished, and that its tokens end at ``node``."""

    def evict(self, tokens: int, requests: Mapping[str, int] | None = None) -> None:
        """Evict whole unlocked leaves until ``tokens`` tokens have been freed.

        The eviction policy decides in which order leaves of the prefix tree are evicted.
        ``requests`` maps clients to their numbers of requests that need memory.
        """
        freed = 0
        while freed < tokens and (leaf := self._next_leaf()) is not None:
            freed += leaf.length
            self._drop(leaf)

    def _next_leaf(self) -> KVNode | None:
        while self._leaves:
            listed, _, node = heappop(self._leaves)
            node.listed = False
            if node.locks or node.children:
                # The removed node returns to the heap of leaves once the node is an unlocked leaf.
                continue
            rank = self.policy.rank(new_tuple(Leaf, (self._access_of(node), 0, 0.0, False)))
            if listed == rank:
                return node
            node.listed = True
            heappush(self._leaves, (rank, node.number, node))
        return None

    def _access_of(self, leaf: KVNode) -> Access:
        """Return the last access of a leaf; matching a waiting request also counts as an access."""
        if not leaf.waiters or leaf.last_access[0] > self.refresh_stamp:
            return leaf.last_access
        waiters = (waiter for group in leaf.waiters.values() for waiter in group)
        return max(leaf.last_access, max(map(self._refreshed, waiters)))

    def _refreshed(self, waiter: KVWaiter) -> Access:
        return self.refresh_stamp, *waiter.touched_at(self.refresh_stamp)

    def _list_if_leaf(self, node: KVNode) -> None:
        if not (node.listed or node.locks or node.children or node is self.root):
            # The leaf's rank in the heap ignores waiting requests that use the leaf, so this rank
            # may be lower than the leaf's true rank.
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
            for group in leaf.waiters.values():
                for waiter in group:
                    waiter.node = parent
                    waiter.place = place_at(waiter.prompt, parent.depth)
                    self._file(waiter, parent)
                    self._moved(waiter)
        self._list_if_leaf(parent)

    def abandon(self) -> None:
        """Remove every node at the end of a run, because Python frees linked nodes slowly."""
        for node in self.nodes():
            node.parent = node.waiters = None
        self.root.children.clear()
        self._leaves.clear()

    # Locks and uses

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
        """Add ``tokens``, which may be negative, to the tokens of ``node`` that requests use."""

    # Prefix tree

    def insert(
        self, node: KVNode, prompt: Prompt, place: Place, depth: int, *, lock: bool = False
    ) -> tuple[KVNode, int]:
        """Store a prompt's tokens after ``node`` up to depth ``depth``.

        The caller has private tokens for the part of the prompt after ``node``. Private tokens are
        moved into the tree unless the tree already contains equal tokens.

        Args:
            node: Node at which the known prefix of the prompt ends.
            prompt: The whole prompt, which begins with the known prefix.
            place: Position in the prompt at which ``node`` ends.
            depth: Number of tokens of the prompt to store.
            lock: Whether to move the caller's lock from ``node`` to the last node of the stored
                tokens.

        Returns:
            The last node of the stored tokens, and the number of tokens that the tree already
            contained. The caller must release its private copies of these tokens.
        """
        end = node
        if node.children:
            stored = self._stored
            if stored is not None and stored[0] is prompt and stored[1].depth == depth:
                end = stored[1]  # the previous call of ``insert`` stored this prompt
            else:
                end, place = self.descend(node, prompt, place, depth)
        cached = end.depth - node.depth
        if end.depth < depth:
            parent, end = end, self.extend(end, prompt, place, depth)
            self._created += 1
            end.number = self._created
            self.evictable += end.length
            if parent.waiters:
                for waiter in parent.waiters.get(end.key, ()):
                    self._moved(waiter)
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
        # If only part of a node matches, SGLang marks the whole node as used before the split.
        if self._matching is not None:
            lower.last_access = self._refreshed(self._matching)
        else:
            self.touch(lower)

    # Waiting requests

    def refresh(self, waiters: Iterable[KVWaiter]) -> None:
        """Match the given waiting requests with the cache again.

        A refresh counts as a use of the cached prefix of every waiting request, even of a request
        that is not matched again.
        """
        self._stamp += 1
        self.refresh_stamp = self._stamp
        for waiter in waiters:
            self.attach(waiter)

    def attach(self, waiter: KVWaiter) -> None:
        """Match a waiting request with the cache again, starting at the end of its last match.

        The cache calls ``on_moved`` when the request must be matched again.
        """
        start: KVNode | None = waiter.node
        node, place, latest = start or self.root, waiter.place, self._latest
        if start is not None:
            self._unfile(waiter, start)
        elif latest is not None and latest.prompt is waiter.prompt and latest.node is not None:
            # Parallel calls of a program often have the same prompt, so the last match is reused.
            node, place = latest.node, latest.place
        self._matching = waiter
        waiter.node, waiter.place = self.descend(node, waiter.prompt, place, waiter.total)
        self._matching, self._latest = None, waiter
        self._file(waiter, waiter.node)

    def detach(self, waiter: KVWaiter) -> None:
        """Remove a waiting request from its tree node, and record its last use of the prefix."""
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

    def _moved(self, waiter: KVWaiter) -> None:
        if self.on_moved is not None:
            self.on_moved(waiter)
