"""A copy of an engine's radix tree, in which an eviction policy chooses the leaf to evict."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Hashable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias, cast

from fairbench.core import PS_PER_S, Request, Segment
from fairbench.engine.client_cache import ClaimedNode, ClientCache, Residency
from fairbench.engine.kv_cache import KVNode
from fairbench.schedulers.eviction.policies import EvictionPolicy

# common name for all clients that the policy does not know
OTHERS = "clients without an entitlement"
UNKNOWN = Request(-1, OTHERS, 0, 0, (), 0, 0)

Ids: TypeAlias = "array[int]"


class Prefix(NamedTuple):
    """A cached prefix: token ids, and a namespace that separates, for example, LoRA adapters."""

    ids: Ids
    namespace: tuple[Hashable, Hashable]


class LiveMemoryLog:
    """A placeholder for the simulator's memory log, with the clock of a real engine."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s

    @property
    def now_ps(self) -> int:
        return round(self._now_s() * PS_PER_S)

    def change(self, client: str, holders: int, change: int, by: str | None = None) -> None:
        """Do nothing, because a real engine keeps no memory log."""


def claiming(request: Request, clients: Container[str]) -> Request:
    """Return the request; if its client is unknown, return a copy with the client ``OTHERS``."""
    return request if request.client in clients else replace(request, client=OTHERS)


def held_by_client(residency: Residency) -> dict[str, float]:
    """Return how many tokens each client has in the cache."""
    return {client: residency.held(client) for client in residency.clients}


class MirroredCache(ClientCache):
    """A simulated cache whose prefix tree copies the nodes of an engine's prefix tree.

    The engine reports every match, insertion and lock. ``drop(node)`` must evict the engine's
    corresponding leaf. Tokens of clients that the policy does not know are evicted first.
    """

    def __init__(
        self,
        capacity: int,
        policy: EvictionPolicy,
        now_s: Callable[[], float],
        drop: Callable[[ClaimedNode], None],
        page: int = 1,
    ) -> None:
        super().__init__(capacity, None, policy, LiveMemoryLog(now_s), OTHERS)
        self.awaited: Callable[[ClaimedNode], bool] = lambda node: False
        self._clients = frozenset(self.residency.clients)
        self._drop_theirs = drop
        self._page = page
        self.splits = 0  # number of node splits so far
        # the tokens of each node, without the tokens of its ancestors
        self._stretches: dict[KVNode, Prefix] = {}

    def claiming(self, request: Request) -> Request:
        """Return the request, or a copy with the client ``OTHERS`` if its client is unknown."""
        return claiming(request, self._clients)

    def prefix_of(self, node: KVNode) -> Prefix:
        """Return all tokens from the root to the end of a node."""
        parts: list[Ids] = []
        namespace: tuple[Hashable, Hashable] = (None, None)
        while (parent := node.parent) is not None:
            ids, namespace = self._stretches[node]
            parts.append(ids)
            node = parent
        whole: Ids = array("q")
        for part in reversed(parts):
            whole.extend(part)
        return Prefix(whole, namespace)

    def end_of(self, prefix: Prefix, depth: int) -> ClaimedNode:
        """Return the node at ``depth`` of a cached prefix; split or append a node if needed."""
        node = self.root
        while node.depth < depth:
            name = self._name(prefix, node.depth)
            child = node.children.get((name, 0))
            if child is None:
                child = self.extend(node, (Segment(name, depth - node.depth),), (0, 0), depth)
                self._created += 1
                child.number = self._created
                self._stretches[child] = Prefix(prefix.ids[node.depth : depth], prefix.namespace)
                self.evictable += child.length
            elif child.depth > depth:
                child = self._cut(child, depth - node.depth)
            node = child
        return cast(ClaimedNode, node)

    def matched(self, prefix: Prefix, limit: int) -> ClaimedNode:
        """Return the end node of the longest cached prefix with at most ``limit`` tokens."""
        node = self.root
        for child, common in self._along(prefix, limit):
            if common < child.length:
                return self.end_of(prefix, node.depth + common)
            node = child
        return cast(ClaimedNode, node)

    def found(self, prefix: Prefix, limit: int) -> tuple[int, int]:
        """Return how many of a prompt's first ``limit`` tokens are cached, and how many are in use.

        Unlike ``matched``, this method splits no node.
        """
        cached = used = 0
        for child, common in self._along(prefix, limit):
            cached += common
            if child.locks and common == child.length:
                used = cached
        return cached, used

    def _along(self, prefix: Prefix, limit: int) -> Iterator[tuple[KVNode, int]]:
        """Yield each node on the path of ``prefix``, with the number of its tokens that match.

        The path ends after ``limit`` tokens or at the first token that differs from ``prefix``.
        """
        ids, node = prefix.ids, self.root
        while node.depth + self._page <= limit:
            child = node.children.get((self._name(prefix, node.depth), 0))
            if child is None:
                return
            most = min(child.length, limit - node.depth)
            theirs, ours = self._stretches[child].ids[:most], ids[node.depth : node.depth + most]
            common = most
            if theirs != ours:
                pairs = enumerate(zip(theirs, ours, strict=False))
                common = next(at for at, (one, other) in pairs if one != other)
            common -= common % self._page
            yield child, common
            if common < child.length:
                return
            node = child

    def _name(self, prefix: Prefix, depth: int) -> str:
        """Return the name of a node that begins at ``depth``: its first page of tokens, as text."""
        text = prefix.ids[depth : depth + self._page].tobytes().decode("latin-1")
        return text if depth else f"{prefix.namespace} {text}"

    def _cut(self, lower: KVNode, tokens: int) -> KVNode:
        ids, namespace = self._stretches[lower]
        parent, (name, _) = lower.parent, lower.key
        assert parent is not None
        self.splits += 1
        upper = self._node_type(parent, (Segment(name, tokens),), tokens)
        parent.children[upper.key] = upper
        self._stretches[upper] = Prefix(ids[:tokens], namespace)
        self._stretches[lower] = Prefix(ids[tokens:], namespace)
        name = ids[tokens : tokens + self._page].tobytes().decode("latin-1")
        lower.parent, lower.length = upper, lower.length - tokens
        lower.edge = (Segment(name, lower.length),)
        upper.children[lower.key] = lower
        self.on_split(upper, lower)
        return upper

    def take(self, client: str, tokens: int) -> None:
        """Allocate ``tokens`` tokens for a client's request, and evict if the pool is too full."""
        self.claims.keep_within_limit(client, tokens)
        if tokens > self.free:
            self.evict(tokens - self.free, {client: tokens})
        self.free -= tokens
        self.residency.add_private(client, tokens)

    def decode(self, requests: Mapping[str, int]) -> None:
        """Allocate a token for each running request; ``requests`` has counts by client."""
        for client, tokens in requests.items():
            self.claims.keep_within_limit(client, tokens)
            self.residency.add_private(client, tokens)

    def store(self, node: ClaimedNode, request: Request, private: int, *, last: bool) -> None:
        """Record that a request caches all nodes up to ``node``; ``last`` marks the request's end.

        ``private`` is the number of the request's private tokens that the tree now holds.
        """
        stored, at = 0, node
        while (parent := at.parent) is not None and not at.holders:
            stored, at = stored + at.length, parent
        # The request stored only those nodes of its prompt's path that no client claims yet.
        self.residency.add_private(request.client, stored - private)
        (self.retain if last else self.claim)(node, request)

    def is_awaited(self, node: ClaimedNode) -> bool:
        return self.awaited(node)

    def _drop(self, leaf: KVNode) -> None:
        self._drop_theirs(cast(ClaimedNode, leaf))
        super()._drop(leaf)
        del self._stretches[leaf]
