"""The location tree: a router's record of the prefixes in each worker's KV cache.

``BoundedTree`` keeps only the most recently used nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Generic, NamedTuple, Self, TypeVar

from fairbench.compiled import mypyc_attr
from fairbench.core import Prompt, prompt_tokens
from fairbench.schedulers.prefix_tree import Edge, Node, Place, PrefixTree


@mypyc_attr(allow_interpreted_subclasses=True)
class LocationNode(Node):
    """A node for a range of tokens, with a bit set of the workers that cache them."""

    __slots__ = ("workers",)

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        super().__init__(parent, edge, length)
        self.workers = 0


class Holders(NamedTuple):
    """The ``workers`` (a bit set) whose caches hold a prefix of ``tokens`` tokens."""

    tokens: int
    workers: int


L = TypeVar("L", bound=LocationNode)


class WalkEnd(NamedTuple, Generic[L]):
    """The deepest node on a prompt's path, and the position in the prompt where the node ends."""

    node: L
    place: Place


@mypyc_attr(allow_interpreted_subclasses=True)
class LocationTree(PrefixTree[L]):
    """A prefix tree that marks each node with the workers that cache its tokens.

    Workers are numbered from 0. A router marks the whole prompt of a request at its dispatch,
    before any cache holds the prompt ([DLPM] Alg. 2 line 18). A marked node may lie below a node
    whose tokens were evicted, because a dispatched request will compute the evicted tokens again. A
    worker's cached prefix of a prompt ends at the deepest node of the path with the worker's mark.
    """

    def find(self, prompt: Prompt) -> WalkEnd[L]:
        """Return the node and the position at which the longest stored prefix of ``prompt`` ends.

        An edge that matches only in part is split, as in SGLang; callers then add the prompt.
        """
        return WalkEnd(*self.descend(self.root, prompt, (0, 0), sys.maxsize))

    def upward(self, node: L) -> Iterator[L]:
        """Yield the node and its ancestors, except the root."""
        while (parent := node.parent) is not None:
            yield node
            node = parent

    def holders(self, node: L) -> Holders:
        """Return the longest prefix of the node's path that any worker caches."""
        while (parent := node.parent) is not None:
            if node.workers:
                return Holders(node.depth, node.workers)
            node = parent
        return Holders(0, 0)

    def levels(self, node: L) -> list[Holders]:
        """Group the workers by the number of tokens of the node's path that each worker caches."""
        found: list[Holders] = []
        seen = 0
        for at in self.upward(node):
            if fresh := at.workers & ~seen:
                seen |= fresh
                found.append(Holders(at.depth, fresh))
        return found

    def cached_tokens(self, node: L) -> dict[int, int]:
        """Return how many tokens of the path to ``node`` each worker caches, by worker."""
        found: dict[int, int] = {}
        for depth, workers in self.levels(node):
            while workers:
                lowest = workers & -workers
                found[lowest.bit_length() - 1] = depth
                workers ^= lowest
        return found

    def insert(self, prompt: Prompt, worker: int) -> L:
        """Mark a whole prompt as cached at ``worker``; return the node at its end."""
        return self.add(self.find(prompt), prompt, worker)

    def add(self, found: WalkEnd[L], prompt: Prompt, worker: int) -> L:
        """Insert ``prompt`` like ``insert``, but reuse the result ``found`` of ``find(prompt)``."""
        node, place = found
        if place[0] < len(prompt):
            node = self.extend(node, prompt, place, prompt_tokens(prompt))
        self.mark_path(node, worker)
        return node

    def mark_path(self, end: L, worker: int) -> None:
        for at in self.upward(end):
            self.mark(at, worker)

    def evict(self, prefix: Prompt, evicted_tokens: int, worker: int) -> None:
        """Record that the worker's cache evicted the last ``evicted_tokens`` of ``prefix``.

        Nodes below the evicted tokens keep the worker's mark, because requests that were sent to
        the worker will compute the evicted tokens again. Tokens of the prefix that the tree does
        not contain, such as outputs, are ignored.
        """
        end = prompt_tokens(prefix)
        start = end - evicted_tokens
        node, _ = self.match(prefix, end)
        for at in self.upward(node):
            kept = start - (at.depth - at.length)
            if kept >= at.length:
                break
            if kept > 0:
                self.split(at, kept)
            self.unmark(at, worker)
        self.prune(node)

    def purge(self, worker: int) -> None:
        """Remove a worker that has left the cluster from all nodes of the tree."""
        parents_first = list(self.nodes())
        for node in reversed(parents_first):
            self.unmark(node, worker)
            if self.vacant(node):
                self.remove(node)

    def prune(self, node: L) -> None:
        while node.parent is not None and self.vacant(node):
            node = self.remove(node)

    def vacant(self, node: L) -> bool:
        """Return whether the node can be removed; subclasses may add conditions."""
        return not node.children and not node.workers

    def mark(self, node: L, worker: int) -> None:
        node.workers |= 1 << worker

    def unmark(self, node: L, worker: int) -> None:
        node.workers &= ~(1 << worker)

    def on_split(self, upper: L, lower: L) -> None:
        upper.workers = lower.workers


MAX_NODES = 1_000_000
NOBODY = -1


@mypyc_attr(allow_interpreted_subclasses=True)
class RecentNode(LocationNode):
    """A node in a circular list of nodes, which is sorted by last use."""

    __slots__ = ("newer", "older")

    newer: Self
    older: Self

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        super().__init__(parent, edge, length)
        self.newer = self.older = self

    def unlink(self) -> None:
        self.older.newer, self.newer.older = self.newer, self.older

    def link_before(self, joint: Self) -> None:
        """Insert this node into the circular list between ``joint`` and ``joint.older``."""
        self.newer, self.older = joint, joint.older
        joint.older.newer = joint.older = self


@mypyc_attr(allow_interpreted_subclasses=True)
class BoundedTree(LocationTree[RecentNode]):
    """A location tree with at most ``limit`` nodes, which removes the least recently used leaves.

    When a prompt is added, all nodes on its path count as used. A single prompt may have more than
    ``limit`` nodes. Only leaves are removed, so the path from the root to any remaining node is
    complete. If a prefix was removed, the router treats the next request with this prefix as new.
    """

    def __init__(self, limit: int = MAX_NODES) -> None:
        super().__init__(RecentNode)
        self.limit = limit
        self.size = 0
        # ``_latest`` holds the prompt that was added last, and the last tree node of this prompt.
        # The next prompt is often equal to ``_latest``, because parallel calls of a program share a
        # prompt.
        self._latest: tuple[Prompt, RecentNode] | None = None
        # ``_marked`` is the worker recorded as caching the whole prompt ``_latest``, or ``NOBODY``.
        self._marked = NOBODY

    def find(self, prompt: Prompt) -> WalkEnd[RecentNode]:
        if (latest := self._latest) is not None and latest[0] is prompt:
            return WalkEnd(latest[1], (len(prompt), 0))
        return super().find(prompt)

    def add(self, found: WalkEnd[RecentNode], prompt: Prompt, worker: int) -> RecentNode:
        latest = self._latest
        if latest is not None and latest[0] is prompt and worker == self._marked:
            # The tree already records that this worker caches the prompt.
            return latest[1]
        end = super().add(found, prompt, worker)
        if self.size > self.limit:
            self._shrink(end)
        self._latest, self._marked = (prompt, end), worker
        return end

    def evict(self, prefix: Prompt, evicted_tokens: int, worker: int) -> None:
        super().evict(prefix, evicted_tokens, worker)
        self._shrink(self.root)

    def mark_path(self, end: RecentNode, worker: int) -> None:
        """Mark the path from the root to ``end`` as cached at ``worker`` and as just used."""
        bit, root, node = 1 << worker, self.root, end
        newest = root.older
        while (parent := node.parent) is not None:
            node.workers |= bit
            if newest is not node:
                older, newer = node.older, node.newer
                older.newer, newer.older = newer, older
                node.older, newest.newer = newest, node
                newest = node
            node = parent
        newest.newer, root.older = root, newest

    def unmark(self, node: RecentNode, worker: int) -> None:
        super().unmark(node, worker)
        self._marked = NOBODY

    def extend(self, node: RecentNode, prompt: Prompt, place: Place, depth: int) -> RecentNode:
        child = super().extend(node, prompt, place, depth)
        child.link_before(self.root)
        self.size += 1
        return child

    def on_split(self, upper: RecentNode, lower: RecentNode) -> None:
        super().on_split(upper, lower)
        upper.link_before(lower.newer)
        self.size += 1

    def remove(self, leaf: RecentNode) -> RecentNode:
        if self._latest is not None and self._latest[1] is leaf:
            self._latest = None
        leaf.unlink()
        self.size -= 1
        return super().remove(leaf)

    def _shrink(self, newest: RecentNode) -> None:
        while self.size > self.limit and (node := self.root.newer) is not newest:
            node.workers = 0
            self.prune(node)
