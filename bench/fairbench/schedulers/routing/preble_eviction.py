"""Preble's eviction cost M: the work that must be repeated if room is made (§3.2)."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from fairbench.schedulers.routing.preble_load import TimeModel
from fairbench.schedulers.routing.preble_tree import PrebleNode, PrebleTree

# Nodes looked at per GPU to price an eviction; what is beyond them is priced like what was seen.
EVICTION_SCAN_NODES = 128


class EvictionCost:
    """The prefill time of each evicted node times its share of the GPU's requests ([gaps] D1).

    ``capacity_tokens`` is a worker's pool; 0 means that it is unknown, and nothing has a price.
    """

    def __init__(self, tree: PrebleTree, times: TimeModel, capacity_tokens: int) -> None:
        self._tree = tree
        self._times = times
        self.capacity_tokens = capacity_tokens

    def price_us(
        self, worker: int, missed: int, keep: Collection[PrebleNode], requests: int
    ) -> float:
        """Return the cost of making room for ``missed`` tokens, in microseconds.

        ``requests`` is the number of requests in the worker's window. Nodes in ``keep``, the path
        of the new request, are never evicted for the new request.
        """
        needed = self._tree.held_tokens[worker] + missed - self.capacity_tokens
        if not self.capacity_tokens or needed <= 0 or not requests:
            return 0
        freed = price_us = 0
        victims = self._tree.victims(worker, needed, keep)
        for node, tokens in islice(victims, EVICTION_SCAN_NODES):
            freed += tokens
            price_us += self._times.prefill_us(tokens) * node.hits.get(worker, 0)
        # Scaled up to all the tokens needed.
        return price_us * needed / freed / requests if freed else 0
