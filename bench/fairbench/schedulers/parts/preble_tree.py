"""Preble's global prefix tree, with recent hits and the LRU order of nodes ([Preble] §3.2)."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator
from typing import Self

from fairbench.core import Prompt
from fairbench.schedulers.location_tree import LocationNode, LocationTree, WalkEnd
from fairbench.schedulers.prefix_tree import Edge


class WaitWindow:
    """The queueing times of one prefix on one GPU in the older and newer halves of a window."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, float]] = deque()

    def add(self, now_s: float, wait_s: float) -> None:
        self._seen.append((now_s, wait_s))
        self._expire(now_s)

    def halves(self, now_s: float) -> tuple[float, float] | None:
        """Return the mean queueing time per half of the window, or None if a half is empty."""
        self._expire(now_s)
        middle_s = now_s - self._window_s / 2
        older = [wait_s for at_s, wait_s in self._seen if at_s < middle_s]
        newer = [wait_s for at_s, wait_s in self._seen if at_s >= middle_s]
        if not older or not newer:
            return None
        return sum(older) / len(older), sum(newer) / len(newer)

    def copy(self) -> WaitWindow:
        same = WaitWindow(self._window_s)
        same._seen = deque(self._seen)
        return same

    def _expire(self, now_s: float) -> None:
        while self._seen and self._seen[0][0] <= now_s - self._window_s:
            self._seen.popleft()


NOWHERE = -1


class PrebleNode(LocationNode):
    """A node of Preble's prefix tree.

    ``hits`` counts, for each worker, recent requests whose prompts contain the node's prefix.
    ``touched`` maps each worker that caches the node to the number of the last dispatch that used
    the node. ``waits`` maps each worker to its recent queueing times, if the node is the key
    portion (in Preble's terms) of a prefix. ``home`` is the worker to which new requests with the
    node's prefix go, or ``NOWHERE``.
    """

    __slots__ = ("hits", "home", "touched", "waits")

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        super().__init__(parent, edge, length)
        self.hits: dict[int, int] = {}
        self.touched: dict[int, int] = {}
        self.waits: dict[int, WaitWindow] = {}
        self.home = NOWHERE


class PrebleTree(LocationTree[PrebleNode]):
    """A location tree that also tracks the order in which each worker evicts nodes.

    The tree numbers the dispatches, and marks all nodes of a dispatched prompt with the dispatch's
    number. All nodes with the same dispatch number form a path in the tree. ``_ends[worker]`` maps
    the number of a dispatch to the deepest tree node with this number. The worker evicts the path
    of the oldest dispatch first, beginning with its leaf.
    """

    def __init__(self) -> None:
        super().__init__(PrebleNode)
        self.held_tokens: defaultdict[int, int] = defaultdict(int)
        self._ends: defaultdict[int, OrderedDict[int, PrebleNode]] = defaultdict(OrderedDict)
        self._dispatches = 0

    def add(self, found: WalkEnd[PrebleNode], prompt: Prompt, worker: int) -> PrebleNode:
        """Mark the prompt as cached at a worker, and count a hit at each node of the prompt."""
        self._dispatches += 1
        end = super().add(found, prompt, worker)
        if end is not self.root:
            self._ends[worker][self._dispatches] = end
        return end

    def forget(self, end: PrebleNode, worker: int) -> None:
        """Remove a request that left the window from the hits of ``end`` and its ancestors."""
        for node in self.upward(end):
            node.hits[worker] -= 1
            if not node.hits[worker]:
                del node.hits[worker]
            if not node.hits:
                node.home = NOWHERE
        self.prune(end)

    def pin(self, node: PrebleNode, worker: int) -> None:
        """Send requests that use ``node`` to ``worker`` while the node is cached and has hits."""
        node.home = worker

    def home(self, node: PrebleNode) -> int:
        """Return the worker of the deepest pinned node at or above ``node``, or ``NOWHERE``."""
        return next((n.home for n in self.upward(node) if n.home != NOWHERE), NOWHERE)

    def victims(
        self, worker: int, tokens: int, keep: Collection[PrebleNode]
    ) -> Iterator[tuple[PrebleNode, int]]:
        """Yield (node to evict, evicted tokens) until ``tokens`` tokens of the worker are freed.

        The least recently used nodes are evicted first, and leaves before their parents. The last
        node that is yielded may be evicted in part. Nodes in ``keep`` (the new request's path up to
        the root) are never evicted. The tree must not change during the iteration.
        """
        for number, end in self._ends[worker].items():
            for node in self.upward(end):
                # A node without a ``touched`` entry has been evicted already, but its ancestors may
                # be cached.
                last = node.touched.get(worker, number)
                if last != number or node in keep:
                    break
                if worker in node.touched:
                    taken = min(node.length, tokens)
                    yield node, taken
                    tokens -= taken
                if not tokens:
                    return

    def purge(self, worker: int) -> None:
        for node in self.nodes():
            node.hits.pop(worker, None)
            node.waits.pop(worker, None)
            if node.home == worker:
                node.home = NOWHERE
        super().purge(worker)

    def vacant(self, node: PrebleNode) -> bool:
        """Return whether the node can be removed; a node with hits in the window is kept."""
        return not node.hits and super().vacant(node)

    def mark(self, node: PrebleNode, worker: int) -> None:
        before = node.touched.get(worker)
        if before is None:
            self.held_tokens[worker] += node.length
        elif self._ends[worker].get(before) is node:
            # A later dispatch has used all nodes of dispatch ``before``, so ``before`` has no node
            # to evict.
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
                # The cached part of the prompt of dispatch ``number`` now ends at ``above``.
                ends[number] = above
            else:
                del ends[number]

    def on_split(self, upper: PrebleNode, lower: PrebleNode) -> None:
        super().on_split(upper, lower)
        upper.hits = dict(lower.hits)
        upper.touched = dict(lower.touched)
        upper.waits = {worker: waits.copy() for worker, waits in lower.waits.items()}
        upper.home = lower.home
