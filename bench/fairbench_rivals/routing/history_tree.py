"""Trees of the prompts sent to each worker, for routers that do not learn of evictions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Self

from fairbench.core import Prompt
from fairbench.schedulers.location_tree import LocationNode, LocationTree, WalkEnd
from fairbench.schedulers.prefix_tree import Edge, Place
from fairbench.schedulers.routing.bases import CountingRouter


class HistoryNode(LocationNode):
    """A node that records when a prompt with its prefix was last sent to each worker (``used``)."""

    __slots__ = ("used",)

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        super().__init__(parent, edge, length)
        self.used: dict[int, int] = {}


class HistoryTree(LocationTree[HistoryNode]):
    """A prefix tree of the prompts sent to workers, which can drop the least recently used leaves.

    ``tokens`` maps a worker to the remembered tokens of the prompts sent to it. ``stored`` is the
    number of tokens in all nodes of the tree.
    """

    def __init__(self) -> None:
        super().__init__(HistoryNode)
        self.tokens: defaultdict[int, int] = defaultdict(int)
        self.stored = 0
        self._sent = 0

    def add(self, found: WalkEnd[HistoryNode], prompt: Prompt, worker: int) -> HistoryNode:
        self._sent += 1
        return super().add(found, prompt, worker)

    def mark(self, node: HistoryNode, worker: int) -> None:
        if worker not in node.used:
            self.tokens[worker] += node.length
        node.used[worker] = self._sent
        super().mark(node, worker)

    def unmark(self, node: HistoryNode, worker: int) -> None:
        if node.used.pop(worker, None) is not None:
            self.tokens[worker] -= node.length
        super().unmark(node, worker)

    def on_split(self, upper: HistoryNode, lower: HistoryNode) -> None:
        super().on_split(upper, lower)
        upper.used = dict(lower.used)

    def extend(self, node: HistoryNode, prompt: Prompt, place: Place, depth: int) -> HistoryNode:
        self.stored += depth - node.depth
        return super().extend(node, prompt, place, depth)

    def remove(self, leaf: HistoryNode) -> HistoryNode:
        self.stored -= leaf.length
        return super().remove(leaf)

    def shrink(self, worker: int, limit: int) -> None:
        """Drop a worker's least recently used leaves until it keeps at most ``limit`` tokens."""
        if self.tokens[worker] > limit:
            self._forget(
                stamp=lambda node: node.used.get(worker),
                drop=lambda node: self.unmark(node, worker),
                enough=lambda: self.tokens[worker] <= limit,
            )

    def shrink_all(self, limit: int) -> None:
        """Drop the least recently used leaves of all workers; keep at most ``limit`` tokens."""

        def drop_node(node: HistoryNode) -> None:
            for worker in list(node.used):
                self.unmark(node, worker)

        if self.stored > limit:
            self._forget(
                stamp=lambda node: max(node.used.values(), default=None),
                drop=drop_node,
                enough=lambda: self.stored <= limit,
            )

    def _forget(
        self,
        stamp: Callable[[HistoryNode], int | None],
        drop: Callable[[HistoryNode], None],
        enough: Callable[[], bool],
    ) -> None:
        """Drop leaves in ascending order of ``stamp`` until ``enough()`` is true."""

        def is_leaf(node: HistoryNode) -> bool:
            return all(stamp(child) is None for child in node.children.values())

        numbers = count()
        held = ((stamp(node), node) for node in self.nodes())
        leaves = [(at, next(numbers), n) for at, n in held if at is not None and is_leaf(n)]
        heapify(leaves)
        while leaves and not enough():
            _, _, node = heappop(leaves)
            parent = node.parent
            drop(node)
            if parent is not None and (at := stamp(parent)) is not None and is_leaf(parent):
                heappush(leaves, (at, next(numbers), parent))
            self.prune(node)

    def latest(self, node: HistoryNode, workers: Iterable[int]) -> int:
        """Return the worker in ``workers`` that received the prefix of ``node`` most recently."""
        return max(workers, key=lambda worker: node.used[worker])


class HistoryRouter(CountingRouter):
    """A router that counts requests in flight, and remembers the prompts sent to live workers."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._tree = HistoryTree()

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        super().on_worker_leave(worker, now_s)
        self._tree.purge(worker)
