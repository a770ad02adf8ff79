"""Preble's load cost of each GPU, and its autoscaling rule ([Preble] Section 3.2, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import merge
from itertools import islice
from math import inf
from typing import NamedTuple, Self

from fairbench.core import Request
from fairbench.schedulers.parts.fleet import members
from fairbench.schedulers.parts.preble_tree import PrebleNode, PrebleTree, WaitWindow
from fairbench.schedulers.parts.preble_windows import GpuWindow, TimeModel, Windows

# maximum number of nodes per GPU that are examined to estimate the cost of an eviction
EVICTION_SCAN_NODES = 128


class EvictionCost:
    """The cost of the evictions that a request would cause ([gaps] D1).

    The cost of an evicted node is its prefill time times the fraction of requests that use it.

    ``capacity_tokens`` is the size of a worker's KV pool in tokens; if the size is unknown (0),
    evictions cost nothing.
    """

    def __init__(self, tree: PrebleTree, times: TimeModel, capacity_tokens: int) -> None:
        self._tree = tree
        self._times = times
        self.capacity_tokens = capacity_tokens

    def price_us(
        self, worker: int, missed: int, keep: Collection[PrebleNode], requests: int
    ) -> float:
        """Return the cost (us) of the evictions that free memory for ``missed`` tokens.

        ``requests`` is the number of requests in the worker's window. The nodes in ``keep`` (the
        new request's path) are never evicted.
        """
        needed = self._tree.held_tokens[worker] + missed - self.capacity_tokens
        if not self.capacity_tokens or needed <= 0 or not requests:
            return 0
        freed = price_us = 0
        victims = self._tree.victims(worker, needed, keep)
        for node, tokens in islice(victims, EVICTION_SCAN_NODES):
            freed += tokens
            price_us += self._times.prefill_us(tokens) * node.hits.get(worker, 0)
        # If the examined nodes free too few tokens, each missing token is assumed to cost as much
        # as an examined token on average.
        return price_us * needed / freed / requests if freed else 0


class Missed(NamedTuple):
    """The number of prompt tokens (``tokens``) that no worker of the set ``workers`` has cached."""

    tokens: int
    workers: int


class PromptMatch(NamedTuple):
    """A prompt's cached prefix, which ends at ``node``, and its uncached tokens at each worker.

    ``missed`` groups the workers by the prompt's uncached tokens, from the fewest to the most.
    """

    node: PrebleNode
    missed: list[Missed]

    @classmethod
    def of(cls, node: PrebleNode, tokens: int, tree: PrebleTree, everyone: int) -> Self:
        """Match a prompt, whose path ends at ``node``, with the caches of all workers."""
        rest, missed = everyone, []
        for depth, workers in tree.levels(node):
            missed.append(Missed(tokens - depth, workers))
            rest &= ~workers
        return cls(node, [*missed, Missed(tokens, rest)])

    def missed_at(self, worker: int) -> int:
        """Return the number of prompt tokens that the worker has not cached."""
        return next(tokens for tokens, workers in self.missed if workers >> worker & 1)


class LoadCost:
    """The cost of [Preble] Alg. 2 in microseconds: load L + evictions M (or 0) + prefill P."""

    def __init__(
        self, windows: Windows, times: TimeModel, tree: PrebleTree, evictions: EvictionCost | None
    ) -> None:
        self._windows = windows
        self._times = times
        self._tree = tree
        self._evictions = evictions

    def cheapest(self, among: int, match: PromptMatch) -> int:
        """Return the set of workers with the lowest cost for a prompt.

        Workers with the least load plus prefill (L + P) are examined first, so that the eviction
        cost M is computed for few workers.
        """
        if not among & (among - 1):
            return among
        evictions = self._evictions
        if evictions is not None and not evictions.capacity_tokens:
            evictions = None
        keep = frozenset(self._tree.upward(match.node)) if evictions else frozenset()
        least: float = inf
        tied = 0
        offers = merge(*(self._offers(among, one) for one in match.missed))
        for without_us, tokens, workers in offers:
            if without_us > least:
                break
            if evictions is None:
                least, tied = without_us, tied | workers
                continue
            for worker in members(workers):
                window, prefill_us = self._windows[worker], self._times.prefill_us(tokens)
                eviction_us = evictions.price_us(worker, tokens, keep, window.assigned_requests)
                cost_us = window.load_us + eviction_us + prefill_us
                if cost_us < least:
                    least, tied = cost_us, 0
                if cost_us == least:
                    tied |= 1 << worker
        return tied

    def _offers(self, among: int, missed: Missed) -> Iterator[tuple[int, int, int]]:
        """Yield the load plus prefill time (us), uncached tokens and workers, least time first."""
        prefill_us = self._times.prefill_us(missed.tokens)
        for load_us, workers in self._windows.loads.ascending(missed.workers & among):
            yield load_us + prefill_us, missed.tokens, workers


class Sent(NamedTuple):
    """A dispatched request: the last node of its prompt, and when its first token may come (s)."""

    end: PrebleNode
    worker: int
    soonest_s: float


class Autoscaler:
    """A monitor of each prefix's queueing time at each GPU ([Preble] §3.2).

    A prefix is identified by its ``key_portion``. A prefix is overloaded on a GPU if its mean
    queueing time in the newer half of the window is at least ``factor`` times the mean in the older
    half, as in Preble's code. A prefix is not overloaded if another GPU would take longer to
    compute the prefix than the mean queueing time in the newer half of the window. The queueing
    time is the time to the first token minus the prefill time that was estimated at dispatch.
    """

    def __init__(self, factor: float, window_s: float, times: TimeModel) -> None:
        self._factor = factor
        self._window_s = window_s
        self._times = times
        self._sent: dict[int, Sent] = {}

    def note_dispatch(
        self, request: Request, worker: int, end: PrebleNode, prefill_us: int, now_s: float
    ) -> None:
        """Record the dispatch of a request whose prompt ends at ``end``."""
        self._sent[request.request_id] = Sent(end, worker, now_s + prefill_us / 10**6)

    def note_first_token(self, request: Request, worker: int, at_s: float) -> None:
        sent = self._sent.get(request.request_id)
        if sent is not None and sent.worker == worker:
            key = key_portion(sent.end)
            waits = key.waits.setdefault(worker, WaitWindow(self._window_s))
            waits.add(at_s, max(0.0, at_s - sent.soonest_s))

    def note_end(self, request: Request) -> None:
        self._sent.pop(request.request_id, None)

    def overloaded(self, end: PrebleNode, worker: int, now_s: float) -> PrebleNode | None:
        """Return the key portion of a prefix that is overloaded on the GPU, or None."""
        key = key_portion(end)
        halves = key.waits[worker].halves(now_s) if worker in key.waits else None
        if halves is None:
            return None
        older_s, newer_s = halves
        copy_s = self._times.prefill_us(key.depth) / 10**6
        return key if newer_s >= self._factor * older_s and newer_s > copy_s else None

    def move_half(
        self, key: PrebleNode, worker: int, window: GpuWindow, to: int, tree: PrebleTree
    ) -> None:
        """Move half of the load of prompts that extend the prefix ``key`` to the GPU ``to``.

        The prefix's recorded queueing times at ``worker`` are deleted, so the prefix is copied
        again only if new queueing times grow.
        """
        split_subtree(key, window, to, tree)
        key.waits.pop(worker)


def key_portion(end: PrebleNode) -> PrebleNode:
    """Return the node that represents the path to ``end``: its key portion ([Preble] §A).

    The key portion is the deepest node of the path whose edge has more tokens than all earlier
    edges of the path together.
    """
    node = end
    while node.parent is not None and 2 * node.length <= node.depth:
        node = node.parent
    return node


def split_subtree(key: PrebleNode, window: GpuWindow, to: int, tree: PrebleTree) -> None:
    """Pin children of the node ``key`` to the GPU ``to``, so that half of their load moves there.

    A child node's load is the load of the window's requests whose prompts pass through the child
    ([Preble] Alg. 2). A child node with a single request stays on its GPU, because it is not known
    whether other requests will use the node. Prompts that end at ``key`` go to the less loaded of
    two GPUs: the node's old GPU and the GPU ``to``.
    """
    shared = {c: load for c, (requests, load) in window.loads_below(key).items() if requests > 1}
    stays = goes = 0
    for child in sorted(shared, key=lambda one: -shared[one]):
        if goes < stays:
            goes += shared[child]
            tree.pin(child, to)
        else:
            stays += shared[child]
