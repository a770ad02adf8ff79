"""Preble's cost of a GPU for a request: its load, evictions and missed prefill."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from heapq import merge
from itertools import islice
from math import inf
from typing import NamedTuple

from fairbench.schedulers.routing.preble_load import TimeModel
from fairbench.schedulers.routing.preble_tree import PrebleNode, PrebleTree
from fairbench.schedulers.routing.preble_windows import Windows
from fairbench.schedulers.worker_sets import members

# Nodes examined per GPU to price an eviction; further nodes get the same price.
EVICTION_SCAN_NODES = 128


class EvictionCost:
    """The prefill time of each evicted node times its share of the GPU's requests ([gaps] D1).

    ``capacity_tokens`` is a worker's pool; 0 means that it is unknown, and evictions have no price.
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
        # The price is scaled up to all the tokens needed.
        return price_us * needed / freed / requests if freed else 0


class Missed(NamedTuple):
    """The ``tokens`` of a prompt that are not cached at these ``workers`` (bits)."""

    tokens: int
    workers: int


def missed_by(everyone: int, tokens: int, tree: PrebleTree, node: PrebleNode) -> list[Missed]:
    """Return how many tokens each worker misses of a prompt cached up to ``node``, least first."""
    rest, missed = everyone, []
    for depth, workers in tree.levels(node):
        missed.append(Missed(tokens - depth, workers))
        rest &= ~workers
    return [*missed, Missed(tokens, rest)]


class LoadCost:
    """L + M + P of [Preble] Alg. 2, in microseconds. Without ``evictions`` M is 0."""

    def __init__(
        self, windows: Windows, times: TimeModel, tree: PrebleTree, evictions: EvictionCost | None
    ) -> None:
        self._windows = windows
        self._times = times
        self._tree = tree
        self._evictions = evictions

    def cheapest(self, among: int, missed: Sequence[Missed], node: PrebleNode) -> int:
        """Return the workers (bits) of lowest cost; ``node`` ends the cached part of the prompt.

        Workers of least L + P are examined first, so that M is computed only where it may decide.
        """
        if not among & (among - 1):
            return among
        evictions = self._evictions
        if evictions is not None and not evictions.capacity_tokens:
            evictions = None
        keep = frozenset(self._tree.upward(node)) if evictions else frozenset()
        least: float = inf
        tied = 0
        for without_us, tokens, workers in merge(*(self._offers(among, one) for one in missed)):
            if without_us > least:
                break
            if evictions is None:
                least, tied = without_us, tied | workers
                continue
            for worker in members(workers):
                window, prefill_us = self._windows[worker], self._times.prefill_us(tokens)
                eviction_us = evictions.price_us(worker, tokens, keep, window.requests)
                cost_us = window.load_us + eviction_us + prefill_us
                if cost_us < least:
                    least, tied = cost_us, 0
                if cost_us == least:
                    tied |= 1 << worker
        return tied

    def _offers(self, among: int, missed: Missed) -> Iterator[tuple[int, int, int]]:
        """Yield L + P of workers that miss equally many tokens, least first."""
        prefill_us = self._times.prefill_us(missed.tokens)
        for load_us, workers in self._windows.loads.ascending(missed.workers & among):
            yield load_us + prefill_us, missed.tokens, workers
