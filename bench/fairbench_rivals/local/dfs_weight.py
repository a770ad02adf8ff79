"""Depth-first order of prefixes by their weight: SGLang's policy ``dfs-weight`` (@00550cd1)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from fairbench.core import Request
from fairbench.schedulers.base import SortableQueue
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.prefix_tree import Node


class DFSWeight(FCFS):
    """A scheduler that orders requests by a depth-first walk over the prefix tree (for cache hits).

    The rule follows ``_dfs_weight_order`` in SGLang's base_prefix_cache.py. At each node, the walk
    first visits the child below which the most requests wait. Equal children are visited in the
    order in which they entered the tree. Requests whose prompts end at a node come after requests
    whose prompts end below the node. Unlike SGLang's lpm, the rule also sorts queues of more than
    128 requests.
    """

    name = "dfs-weight"
    sglang_since = "0.5.3"

    def sort_queue(self, queue: SortableQueue) -> Sequence[Request]:
        ends: defaultdict[Node, list[Request]] = defaultdict(list)
        for one in queue.matches():
            ends[one.node].append(one.request)
        weights: Counter[Node] = Counter()
        for end, requests in ends.items():
            node: Node | None = end
            while node is not None:
                weights[node] += len(requests)
                node = node.parent
        order = (request for node in _walk(weights) for request in ends.get(node, ()))
        return list(order)


def _walk(weights: Mapping[Node, int]) -> Iterator[Node]:
    """Yield all nodes in ``weights``: children before parents, and the heaviest children first."""
    stack = [(node, False) for node in weights if node.parent is None]
    while stack:
        node, visited = stack.pop()
        if visited:
            yield node
            continue
        stack.append((node, True))
        heavy = [child for child in node.children.values() if child in weights]
        heavy.sort(key=weights.__getitem__, reverse=True)
        stack += [(child, False) for child in reversed(heavy)]
