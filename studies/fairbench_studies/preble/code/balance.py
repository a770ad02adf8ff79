"""Rebalancing and autoscaling as in Preble's published code ([Preble code])."""

from __future__ import annotations

from math import inf
from typing import Protocol

from fairbench.schedulers.parts.preble_costs import key_portion
from fairbench.schedulers.parts.preble_tree import PrebleNode
from fairbench_studies.preble.code.load import CodeLoad


class BalanceParams(Protocol):
    """The router parameters for rebalancing and autoscaling."""

    @property
    def rebalance_threshold(self) -> float: ...
    @property
    def rebalance_after(self) -> int: ...
    @property
    def rebalance_min_hits(self) -> int: ...
    @property
    def rebalance_max_chain(self) -> int: ...
    @property
    def autoscale_factor(self) -> float: ...


class CodeBalance:
    """Load balancing that moves nodes of the prefix tree to the GPU with the least load.

    Only key nodes are moved, the cheapest first. The key node of a request is the deepest node on
    the prompt's path with more tokens than the path above the node. A GPU's only key node is not
    moved, but copied to the GPU with the least load once the TTFT of the node's requests has
    doubled.
    """

    def __init__(self, params: BalanceParams, load: CodeLoad) -> None:
        self._params = params
        self._load = load

    def rebalance(self, end: PrebleNode, requests: int, now_s: float) -> None:
        """Even out the load between the least loaded GPU and each more loaded GPU in turn.

        ``end`` is the last tree node of the request that was just dispatched. ``requests`` is the
        number of requests dispatched so far.
        """
        params = self._params
        chain = _levels(end) - _levels(key_portion(end))
        early = requests < params.rebalance_after * len(self._load.gpus)
        if params.rebalance_threshold == inf or early or chain >= params.rebalance_max_chain:
            return
        loads = self._load.of_gpus(params.rebalance_min_hits)
        heaviest_first = sorted(loads, key=lambda worker: -loads[worker])
        lightest = heaviest_first.pop()
        for heavy in heaviest_first:
            if loads[heavy] < params.rebalance_threshold * loads[lightest]:
                return
            self._even_out(heavy, lightest, loads, now_s)

    def _even_out(self, heavy: int, light: int, loads: dict[int, float], now_s: float) -> None:
        """Move nodes from GPU ``heavy`` to GPU ``light``, or copy a node. Update ``loads``."""
        costs = {
            key.node: self._load.key_s(key, heavy)
            for key in self._load.tree.keys.values()
            if key.requests >= self._params.rebalance_min_hits
            and self._load.tree.allocated.get(key.node, 0) >> heavy & 1
        }
        if len(costs) == 1:
            ((node, cost),) = costs.items()
            held = self._load.tree.allocated[node] >> light & 1
            if not held and self._has_doubled(node, heavy, now_s):
                self._load.tree.allocated[node] |= 1 << light
                del node.waits[heavy]
                loads[heavy] -= cost / 2
                loads[light] += cost / 2
            return
        for node in sorted(costs, key=lambda one: costs[one]):
            if loads[heavy] - costs[node] < loads[light] + costs[node]:
                return
            loads[heavy] -= costs[node]
            loads[light] += costs[node]
            self._load.tree.move(node, light)
            if loads[heavy] < self._params.rebalance_threshold * loads[light]:
                return

    def _has_doubled(self, node: PrebleNode, worker: int, now_s: float) -> bool:
        """Return whether ``node``'s TTFT grew by ``autoscale_factor`` within the time window."""
        halves = node.waits[worker].halves(now_s) if worker in node.waits else None
        return halves is not None and halves[1] >= self._params.autoscale_factor * halves[0]


def _levels(node: PrebleNode) -> int:
    levels = 0
    while node.parent is not None:
        node, levels = node.parent, levels + 1
    return levels
