"""Nodes of the KV cache's radix tree, and the waiting requests attached to them."""

from __future__ import annotations

from typing import Self

from fairbench.schedulers.prefix_tree import Edge, Node
from fairbench.sim.prefix_cache import Waiter as AnyWaiter

# The time of a node's last use: a stamp, and, for the touch that every waiting request gives its
# prefix at a refresh (with one stamp for all), the request's place in the list, because SGLang
# touches the prefixes one by one in that order.
Access = tuple[int, int, int]


class KVNode(Node):
    """A cached stretch of some prompt.

    Facts of a path are stored at its end, to avoid a walk. ``locks`` counts the locks of the node
    itself, and one for each child with locks. ``last_access`` is the time when a use ended at the
    node, or at a node below it that has since been dropped. For a leaf both values are complete.
    """

    __slots__ = ("last_access", "listed", "locks", "number", "waiters")

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        # Inlined from Node, because there are many nodes.
        self.parent = parent
        self.edge = edge
        self.start = 0
        self.length = length
        self.depth = length if parent is None else parent.depth + length
        self.children = {}
        self.locks = 0
        self.last_access: Access = (0, 0, 0)
        self.number = 0  # creation order, which breaks LRU ties
        self.listed = False  # whether it has an entry in the eviction heap
        self.waiters: Waiters | None = None


Waiter = AnyWaiter[KVNode]
# Key of the child that would extend a match -> waiters (None: the whole prompt is matched).
Waiters = dict[tuple[str, int] | None, dict[Waiter, None]]


def next_key(waiter: Waiter) -> tuple[str, int] | None:
    """Return the key of a child that would extend the match; None if all of it is matched."""
    index, offset = waiter.place
    if index == len(waiter.prompt):
        return None
    return waiter.prompt[index].key, offset
