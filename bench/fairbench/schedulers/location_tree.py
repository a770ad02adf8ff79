"""The location tree: which workers hold which prefixes, the routers' view of every cache."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Generic, NamedTuple, Self, TypeVar

from fairbench.compiled import mypyc_attr
from fairbench.core import Prompt, prompt_tokens
from fairbench.schedulers.prefix_tree import Edge, Node, Place, PrefixTree


@mypyc_attr(allow_interpreted_subclasses=True)
class LocationNode(Node):
    """A stretch of tokens and, as bits of ``workers``, who holds it."""

    __slots__ = ("workers",)

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        super().__init__(parent, edge, length)
        self.workers = 0


class Holders(NamedTuple):
    """The ``workers`` (bits) that hold a prefix of so many ``tokens``."""

    tokens: int
    workers: int


L = TypeVar("L", bound=LocationNode)


class Found(NamedTuple, Generic[L]):
    """Where a walk along a prompt ended: the deepest ``node`` on it, and its ``place`` there."""

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
        """Where the walk along a prompt ends, for the calls below.

        An edge that matches in part is split there, as SGLang does: the prompt is about to be added
        in any case.
        """
        return Found(*self.descend(self.root, prompt, (0, 0), sys.maxsize))

    def upward(self, node: L) -> Iterator[L]:
        """The node and everything above it but the root."""
        while (parent := node.parent) is not None:
            yield node
            node = parent

    def holders(self, node: L) -> Holders:
        """Who holds the deepest stretch at or above ``node`` that anybody holds."""
        while (parent := node.parent) is not None:
            if node.workers:
                return Holders(node.depth, node.workers)
            node = parent
        return Holders(0, 0)

    def levels(self, node: L) -> list[Holders]:
        """Each worker with its deepest mark at or above ``node``, the deepest first."""
        found: list[Holders] = []
        seen = 0
        for at in self.upward(node):
            if fresh := at.workers & ~seen:
                seen |= fresh
                found.append(Holders(at.depth, fresh))
        return found

    def cached_tokens(self, node: L) -> dict[int, int]:
        """Worker -> depth of its deepest mark at or above ``node``; workers without are absent."""
        found: dict[int, int] = {}
        for depth, workers in self.levels(node):
            while workers:
                lowest = workers & -workers
                found[lowest.bit_length() - 1] = depth
                workers ^= lowest
        return found

    def insert(self, prompt: Prompt, worker: int) -> L:
        """Mark a whole prompt as held by ``worker``; returns the node at its end."""
        return self.add(self.find(prompt), prompt, worker)

    def add(self, found: Found[L], prompt: Prompt, worker: int) -> L:
        """``insert`` that goes on from what ``find`` returned for this prompt just before."""
        node, place = found
        if place[0] < len(prompt):
            node = self.extend(node, prompt, place, prompt_tokens(prompt))
        self.mark_path(node, worker)
        return node

    def mark_path(self, end: L, worker: int) -> None:
        """Mark a node and everything above it, the root apart, from below."""
        for at in self.upward(end):
            self.mark(at, worker)

    def evict(self, prefix: Prompt, evicted_tokens: int, worker: int) -> None:
        """The last ``evicted_tokens`` of ``prefix`` have left the worker's cache.

        What hangs below keeps its marks: requests on their way there will recompute the rest.
        Tokens of the prefix that the tree does not know (outputs) are passed over.
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
        """The worker is gone with its whole cache. Visits every node."""
        parents_first = list(self.nodes())
        for node in reversed(parents_first):
            self.unmark(node, worker)
            if self.vacant(node):
                self.remove(node)

    def prune(self, node: L) -> None:
        """Remove ``node`` and then whatever becomes childless above it, while nobody needs it."""
        while node.parent is not None and self.vacant(node):
            node = self.remove(node)

    def vacant(self, node: L) -> bool:
        """Whether the node may go: no children, no worker. Subclasses may have more reasons."""
        return not node.children and not node.workers

    def mark(self, node: L, worker: int) -> None:
        """The worker now holds this one node."""
        node.workers |= 1 << worker

    def unmark(self, node: L, worker: int) -> None:
        """The worker no longer holds this one node (nor need it have before)."""
        node.workers &= ~(1 << worker)

    def on_split(self, upper: L, lower: L) -> None:
        upper.workers = lower.workers
