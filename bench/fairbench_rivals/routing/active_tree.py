"""The active tree, which records the prefixes that each worker has cached or in use."""

from __future__ import annotations

from collections import defaultdict
from typing import Self

from fairbench.schedulers.location_tree import LocationNode, LocationTree
from fairbench.schedulers.prefix_tree import Edge


class ActiveNode(LocationNode):
    """A node that counts, for each worker, the unfinished requests with its prefix (``active``)."""

    __slots__ = ("active",)

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        super().__init__(parent, edge, length)
        self.active: dict[int, int] = {}


class ActiveTree(LocationTree[ActiveNode]):
    """A prefix tree that counts ``active_tokens``, each worker's distinct prompt tokens in use."""

    def __init__(self) -> None:
        super().__init__(ActiveNode)
        self.active_tokens: defaultdict[int, int] = defaultdict(int)

    def start_request(self, end: ActiveNode, worker: int) -> None:
        """Count a request sent to the worker; ``end`` is the tree node at which its prompt ends."""
        for node in self.upward(end):
            if worker not in node.active:
                self.active_tokens[worker] += node.length
            node.active[worker] = node.active.get(worker, 0) + 1

    def stop_request(self, end: ActiveNode, worker: int) -> None:
        """Remove an ended request that ``start_request`` counted."""
        for node in self.upward(end):
            node.active[worker] -= 1
            if not node.active[worker]:
                del node.active[worker]
                self.active_tokens[worker] -= node.length
        self.prune(end)

    def shared_tokens(self, node: ActiveNode, worker: int) -> int:
        """Return how many tokens of the prefix that ends at ``node`` are in use at the worker."""
        return next((at.depth for at in self.upward(node) if worker in at.active), 0)

    def vacant(self, node: ActiveNode) -> bool:
        return not node.active and super().vacant(node)

    def on_split(self, upper: ActiveNode, lower: ActiveNode) -> None:
        super().on_split(upper, lower)
        upper.active = dict(lower.active)
