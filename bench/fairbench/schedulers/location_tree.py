"""The location tree: which workers hold which prefixes, a router's view of every cache."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Generic, NamedTuple, Self, TypeVar

from fairbench.compiled import mypyc_attr
from fairbench.core import Prompt, prompt_tokens
from fairbench.schedulers.prefix_tree import Edge, Node, Place, PrefixTree


@mypyc_attr(allow_interpreted_subclasses=True)
class LocationNode(Node):
    """A node for a range of tokens. The bits of ``workers`` tell which workers hold it."""

    __slots__ = ("workers",)

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        super().__init__(parent, edge, length)
        self.workers = 0


class Holders(NamedTuple):
    """The ``workers`` (bits) that hold a prefix of ``tokens`` tokens."""

    tokens: int
    workers: int


L = TypeVar("L", bound=LocationNode)


class Found(NamedTuple, Generic[L]):
    """The end of a walk along a prompt: the deepest ``node``, and the ``place`` in the prompt."""

    node: L
    place: Place


@mypyc_attr(allow_interpreted_subclasses=True)
class LocationTree(PrefixTree[L]):
    """A prefix tree whose nodes know their workers. Workers are numbered from 0.

    A request marks its whole prompt when it is dispatched, before any cache holds it ([DLPM] Alg. 2
    line 18), so a node may be marked below one that is not: the request there will recompute what
    was evicted above. The deepest mark is therefore what counts.
    """

    def find(self, prompt: Prompt) -> Found[L]:
        """Return the end of the walk along a prompt, as an argument for the methods below.

        The walk splits an edge that matches in part, as SGLang does, because the prompt is about to
        be added anyway.
        """
        return Found(*self.descend(self.root, prompt, (0, 0), sys.maxsize))

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
        """Return worker -> depth of its deepest mark at or above ``node``, if it has any mark."""
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

    def add(self, found: Found[L], prompt: Prompt, worker: int) -> L:
        """Insert a prompt as ``insert`` does, from the result of ``find`` for the same prompt.

        Args:
            found: Result of ``find`` for the prompt.
            prompt: Prompt to insert.
            worker: Number of the worker that holds the prompt.

        Returns:
            Node at the end of the prompt.
        """
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
        """Remove the marks of a worker that left together with its cache. Visits every node."""
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
        """Return whether the node can be removed: no children, no worker.

        Subclasses may add reasons.
        """
        return not node.children and not node.workers

    def mark(self, node: L, worker: int) -> None:
        """Record that the worker's cache holds this node; its parents are not changed."""
        node.workers |= 1 << worker

    def unmark(self, node: L, worker: int) -> None:
        """Remove the worker's mark from this single node, if there is any."""
        node.workers &= ~(1 << worker)

    def on_split(self, upper: L, lower: L) -> None:
        upper.workers = lower.workers
