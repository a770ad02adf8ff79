"""The location tree: the prefixes that each worker holds, a router's view of every cache.

``BoundedTree`` keeps a limited number of recently used nodes.
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
    """A node for a range of tokens, which the ``workers`` (bits) hold."""

    __slots__ = ("workers",)

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        super().__init__(parent, edge, length)
        self.workers = 0


class Holders(NamedTuple):
    """The ``workers`` (bits) that hold a prefix of ``tokens`` tokens."""

    tokens: int
    workers: int


L = TypeVar("L", bound=LocationNode)


class WalkEnd(NamedTuple, Generic[L]):
    """The end of a walk along a prompt: the deepest ``node`` and the ``place`` in the prompt."""

    node: L
    place: Place


@mypyc_attr(allow_interpreted_subclasses=True)
class LocationTree(PrefixTree[L]):
    """A prefix tree whose nodes know their workers. Workers are numbered from 0.

    A request marks its whole prompt when it is dispatched, before any cache holds it ([DLPM] Alg. 2
    line 18), so a node may be marked below an unmarked one: the request will recompute the evicted
    part above it. The deepest mark therefore counts.
    """

    def find(self, prompt: Prompt) -> WalkEnd[L]:
        """Return the end of the walk along a prompt, as an argument for the methods below.

        The walk splits an edge that matches in part, as SGLang does, because the prompt is about to
        be added.
        """
        return WalkEnd(*self.descend(self.root, prompt, (0, 0), sys.maxsize))

    def upward(self, node: L) -> Iterator[L]:
        """Yield the node and all its ancestors except the root."""
        while (parent := node.parent) is not None:
            yield node
            node = parent

    def holders(self, node: L) -> Holders:
        """Return the holders of the deepest node at or above ``node`` that any worker holds."""
        while (parent := node.parent) is not None:
            if node.workers:
                return Holders(node.depth, node.workers)
            node = parent
        return Holders(0, 0)

    def levels(self, node: L) -> list[Holders]:
        """Return each worker at its deepest mark at or above ``node``, deepest first."""
        found: list[Holders] = []
        seen = 0
        for at in self.upward(node):
            if fresh := at.workers & ~seen:
                seen |= fresh
                found.append(Holders(at.depth, fresh))
        return found

    def cached_tokens(self, node: L) -> dict[int, int]:
        """Return, by worker, the depth of the worker's deepest mark at or above ``node``."""
        found: dict[int, int] = {}
        for depth, workers in self.levels(node):
            while workers:
                lowest = workers & -workers
                found[lowest.bit_length() - 1] = depth
                workers ^= lowest
        return found

    def insert(self, prompt: Prompt, worker: int) -> L:
        """Mark a whole prompt as held by ``worker``; return the node at its end."""
        return self.add(self.find(prompt), prompt, worker)

    def add(self, found: WalkEnd[L], prompt: Prompt, worker: int) -> L:
        """Insert a prompt as ``insert`` does, given the result of ``find`` for it."""
        node, place = found
        if place[0] < len(prompt):
            node = self.extend(node, prompt, place, prompt_tokens(prompt))
        self.mark_path(node, worker)
        return node

    def mark_path(self, end: L, worker: int) -> None:
        """Mark a node and all nodes above it except the root, from the bottom up."""
        for at in self.upward(end):
            self.mark(at, worker)

    def evict(self, prefix: Prompt, evicted_tokens: int, worker: int) -> None:
        """Record that the worker's cache evicted the last ``evicted_tokens`` of ``prefix``.

        Nodes below keep their marks: requests on their way to the worker will recompute the rest.
        Tokens of the prefix that the tree does not know (outputs) are ignored.
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
        """Remove the marks of a worker that left together with its cache; every node is visited."""
        parents_first = list(self.nodes())
        for node in reversed(parents_first):
            self.unmark(node, worker)
            if self.vacant(node):
                self.remove(node)

    def prune(self, node: L) -> None:
        """Remove ``node``, and each ancestor that is then vacant."""
        while node.parent is not None and self.vacant(node):
            node = self.remove(node)

    def vacant(self, node: L) -> bool:
        """Return whether the node can be removed; subclasses may add reasons against it."""
        return not node.children and not node.workers

    def mark(self, node: L, worker: int) -> None:
        """Record that the worker's cache holds this node; its parents are not changed."""
        node.workers |= 1 << worker

    def unmark(self, node: L, worker: int) -> None:
        """Remove the worker's mark from this single node, if there is any."""
        node.workers &= ~(1 << worker)

    def on_split(self, upper: L, lower: L) -> None:
        upper.workers = lower.workers


MAX_NODES = 1_000_000
NOBODY = -1


@mypyc_attr(allow_interpreted_subclasses=True)
class RecentNode(LocationNode):
    """A node that is linked in a ring with the nodes used just before and after it."""

    __slots__ = ("newer", "older")

    newer: Self
    older: Self

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        super().__init__(parent, edge, length)
        self.newer = self.older = self

    def unlink(self) -> None:
        self.older.newer, self.newer.older = self.newer, self.older

    def link_before(self, joint: Self) -> None:
        """Insert this node into the ring as the node just older than ``joint``."""
        self.newer, self.older = joint, joint.older
        joint.older.newer = joint.older = self


@mypyc_attr(allow_interpreted_subclasses=True)
class BoundedTree(LocationTree[RecentNode]):
    """A location tree that keeps at most ``limit`` nodes, or the nodes of one prompt if more.

    Adding a prompt uses its whole path, whichever worker it goes to. Beyond the limit the least
    recently used leaf is forgotten with its marks. The tree therefore always holds a prefix of each
    prompt. A router that forgets a prefix of a worker's cache only loses a hit: the next request is
    routed as if it were new. Each call takes as long as in an unbounded tree.
    """

    def __init__(self, limit: int = MAX_NODES) -> None:
        super().__init__(RecentNode)
        self.limit = limit
        self.size = 0  # nodes except the root
        # The prompt that was added last, and its end while the end exists: programs branch, so the
        # next prompt is often the same.
        self._latest: tuple[Prompt, RecentNode] | None = None
        self._marked = NOBODY  # the worker of that prompt, while nothing has changed since

    def find(self, prompt: Prompt) -> WalkEnd[RecentNode]:
        if (latest := self._latest) is not None and latest[0] is prompt:
            return WalkEnd(latest[1], (len(prompt), 0))
        return super().find(prompt)

    def add(self, found: WalkEnd[RecentNode], prompt: Prompt, worker: int) -> RecentNode:
        latest = self._latest
        if latest is not None and latest[0] is prompt and worker == self._marked:
            return latest[1]  # the whole path is marked, and was used last
        end = super().add(found, prompt, worker)
        if self.size > self.limit:
            self._shrink(end)
        self._latest, self._marked = (prompt, end), worker
        return end

    def evict(self, prefix: Prompt, evicted_tokens: int, worker: int) -> None:
        super().evict(prefix, evicted_tokens, worker)
        self._shrink(self.root)

    def mark_path(self, end: RecentNode, worker: int) -> None:
        """Mark a path as just used, from the leaf up; calls are inlined for speed."""
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
        """Forget the leaves that were unused for longest, except ``newest``."""
        while self.size > self.limit and (node := self.root.newer) is not newest:
            node.workers = 0
            self.prune(node)
