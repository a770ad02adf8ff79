"""Preble's global prefix tree: holders, hits in the window, LRU order of GPUs.

See [Preble] §3.2.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterator
from typing import Self

from fairbench.core import Prompt
from fairbench.schedulers.location_tree import Found, LocationNode, LocationTree
from fairbench.schedulers.prefix_tree import Edge
from fairbench.schedulers.routing.preble_waits import Waits

NOWHERE = -1


class PrebleNode(LocationNode):
    """A node with ``hits``: worker -> its requests of the window that share this node.

    ``touched``: worker -> number of the last dispatch through here; its keys are the holders.
    ``waits``: worker -> queueing times there, if this is a key portion. ``home``: the worker to
    which its requests were moved, or ``NOWHERE``.
    """

    __slots__ = ("hits", "home", "touched", "waits")

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        super().__init__(parent, edge, length)
        self.hits: dict[int, int] = {}
        self.touched: dict[int, int] = {}
        self.waits: dict[int, Waits] = {}
        self.home = NOWHERE


class PrebleTree(LocationTree[PrebleNode]):
    """A location tree that also knows the next eviction of each worker.

    Dispatches are numbered, and a dispatch touches its whole path. The nodes last touched by
    dispatch n form one path, found from its deepest node: ``_ends[worker]`` lists these nodes in
    order of n. Following them upwards in turn gives the LRU order, leaves first, at no cost beyond
    the walk of each dispatch.
    """

    def __init__(self) -> None:
        super().__init__(PrebleNode)
        # worker -> prompt tokens that it holds
        self.held_tokens: defaultdict[int, int] = defaultdict(int)
        self._ends: defaultdict[int, OrderedDict[int, PrebleNode]] = defaultdict(OrderedDict)
        self._dispatches = 0

    def add(self, found: Found[PrebleNode], prompt: Prompt, worker: int) -> PrebleNode:
        """Mark the prompt and count one hit along it; the caller must ``forget`` the hit later."""
        self._dispatches += 1
        end = super().add(found, prompt, worker)
        if end is not self.root:
            self._ends[worker][self._dispatches] = end
        return end

    def forget(self, end: PrebleNode, worker: int) -> None:
        """Remove the hits of a dispatch that ended at ``end`` and has left the window."""
        for node in self.upward(end):
            node.hits[worker] -= 1
            if not node.hits[worker]:
                del node.hits[worker]
            if not node.hits:
                node.home = NOWHERE
        self.prune(end)

    def pin(self, node: PrebleNode, worker: int) -> None:
        """Send requests through ``node`` to ``worker`` until it evicts the node or no more come."""
        node.home = worker

    def home(self, node: PrebleNode) -> int:
        """Return the worker of the deepest pin at or above ``node``, else ``NOWHERE``."""
        return next((n.home for n in self.upward(node) if n.home != NOWHERE), NOWHERE)

    def victims(
        self, worker: int, tokens: int, keep: Collection[PrebleNode]
    ) -> Iterator[tuple[PrebleNode, int]]:
        """Yield the nodes that the worker would evict to free ``tokens``, each with its tokens.

        The order is least recently used first, leaves before their parents; the last node counts
        only in part. Nodes in ``keep``, the path of the new request up to the root, are never
        evicted. The iteration ends early if no node is left. The tree must not change meanwhile.
        """
        for number, end in self._ends[worker].items():
            for node in self.upward(end):
                last = node.touched.get(worker, number)  # already evicted: look further up
                if last != number or node in keep:
                    break
                if worker in node.touched:
                    taken = min(node.length, tokens)
                    yield node, taken
                    tokens -= taken
                if not tokens:
                    return

    def purge(self, worker: int) -> None:
        """Forget the worker with its marks, its hits and its order."""
        for node in self.nodes():
            node.hits.pop(worker, None)
            node.waits.pop(worker, None)
            if node.home == worker:
                node.home = NOWHERE
        super().purge(worker)

    def vacant(self, node: PrebleNode) -> bool:
        """Return whether the node can go; any request in the window keeps it ([Preble] §3.2)."""
        return not node.hits and super().vacant(node)

    def mark(self, node: PrebleNode, worker: int) -> None:
        before = node.touched.get(worker)
        if before is None:
            self.held_tokens[worker] += node.length
        elif self._ends[worker].get(before) is node:
            # The earlier dispatch ended here: its whole path is touched again.
            del self._ends[worker][before]
        node.touched[worker] = self._dispatches
        node.hits[worker] = node.hits.get(worker, 0) + 1
        super().mark(node, worker)

    def unmark(self, node: PrebleNode, worker: int) -> None:
        number = node.touched.pop(worker, None)
        if number is None:
            return
        self.held_tokens[worker] -= node.length
        if node.home == worker:
            node.home = NOWHERE
        super().unmark(node, worker)
        ends = self._ends[worker]
        if ends.get(number) is node:
            above = next((n for n in self.upward(node) if worker in n.touched), None)
            if above is not None and above.touched[worker] == number:
                ends[number] = above  # the node keeps its place in the order
            else:
                del ends[number]

    def on_split(self, upper: PrebleNode, lower: PrebleNode) -> None:
        super().on_split(upper, lower)
        upper.hits = dict(lower.hits)
        upper.touched = dict(lower.touched)
        upper.waits = {worker: waits.copy() for worker, waits in lower.waits.items()}
        upper.home = lower.home
