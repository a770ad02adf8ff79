"""The prefix tree of Preble's code, with GPUs, unfinished requests and request counts per node."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass

from fairbench.schedulers.parts.preble_costs import key_portion
from fairbench.schedulers.parts.preble_tree import PrebleNode, PrebleTree


@dataclass(slots=True, eq=False)
class KeyCount:
    """Counts of the recent requests with the same prefix-tree node ``node``, and of their tokens.

    ``context_tokens`` counts prompt tokens above the leaves of the requests. ``output_tokens`` is
    the output limit of the most recent request.
    """

    node: PrebleNode
    requests: int = 0
    context_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def miss_rate(self) -> float:
        """The fraction of prompt tokens that are in the requests' own leaves and not cached."""
        return 1 - self.context_tokens / self.prompt_tokens


class CodeTree(PrebleTree):
    """Preble's prefix tree, with the GPUs that are allocated to each node.

    ``allocated`` holds a node's GPUs as bits. ``under_way`` counts unfinished requests by GPU and
    tree node. ``keys`` has the request and token counts of recently used key nodes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.allocated: dict[PrebleNode, int] = {}
        self.under_way: defaultdict[int, Counter[PrebleNode]] = defaultdict(Counter)
        self.keys: dict[PrebleNode, KeyCount] = {}
        self._window: deque[tuple[float, KeyCount, int, int]] = deque()

    def allocation(self, node: PrebleNode) -> int:
        """Return the GPUs (as bits) of ``node``, or of the nearest ancestor that has GPUs."""
        return next((bits for n in self.upward(node) if (bits := self.allocated.get(n, 0))), 0)

    def allocate(self, node: PrebleNode, worker: int) -> None:
        """Allocate one more GPU to the node and to all ancestors of the node."""
        for at in self.upward(node):
            self.allocated[at] = self.allocated.get(at, 0) | 1 << worker

    def move(self, node: PrebleNode, worker: int) -> None:
        """Make ``worker`` the only GPU of ``node`` and of all nodes below ``node``."""
        below = [node]
        while below:
            at = below.pop()
            self.allocated[at] = 1 << worker
            below.extend(at.children.values())

    def begin(self, end: PrebleNode, worker: int) -> None:
        """Record that a request whose prompt ends at node ``end`` has started at a worker."""
        for at in self.upward(end):
            self.under_way[worker][at] += 1

    def over(self, end: PrebleNode, worker: int) -> None:
        """Record that a request whose prompt ends at ``end`` has ended at a worker."""
        counts = self.under_way[worker]
        for at in self.upward(end):
            if counts[at] > 1:
                counts[at] -= 1
            else:
                del counts[at]

    def count(self, now_s: float, end: PrebleNode, context: int, prompt: int, output: int) -> None:
        """Add a request to the counts of its key node (see ``key_portion``).

        Args:
            now_s: The current time in seconds.
            end: The tree node at which the prompt ends.
            context: The number of prompt tokens outside the request's own leaf.
            prompt: The number of prompt tokens.
            output: The request's limit on output tokens.
        """
        node = key_portion(end)
        key = self.keys.setdefault(node, KeyCount(node))
        key.requests += 1
        key.context_tokens += context
        key.prompt_tokens += prompt
        key.output_tokens = output
        self._window.append((now_s, key, context, prompt))

    def expire(self, start_s: float) -> None:
        """Remove requests that arrived at ``start_s`` or before.

        A key node without remaining requests is no longer allocated to any GPU.
        """
        while self._window and self._window[0][0] <= start_s:
            _, key, context, prompt = self._window.popleft()
            key.requests -= 1
            key.context_tokens -= context
            key.prompt_tokens -= prompt
            if not key.requests:
                del self.keys[key.node]
                self.allocated.pop(key.node, None)

    def on_split(self, upper: PrebleNode, lower: PrebleNode) -> None:
        super().on_split(upper, lower)
        self.allocated[upper] = self.allocated.get(lower, 0)
        for counts in self.under_way.values():
            if lower in counts:
                counts[upper] = counts[lower]
        # A key node of Preble has more tokens than the path above it. If a split leaves ``lower``
        # with too few tokens for a key node, ``upper`` becomes the key node.
        if lower in self.keys and key_portion(lower) is not lower:
            key = self.keys.pop(lower)
            key.node = upper
            self.keys[upper] = key

    def remove(self, leaf: PrebleNode) -> PrebleNode:
        self.allocated.pop(leaf, None)
        return super().remove(leaf)

    def purge(self, worker: int) -> None:
        for node in self.allocated:
            self.allocated[node] &= ~(1 << worker)
        self.under_way.pop(worker, None)
        super().purge(worker)
