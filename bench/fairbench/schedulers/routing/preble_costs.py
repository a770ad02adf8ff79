"""Preble's loads of GPUs in a recent window, costs of GPUs, and autoscaling.

The source is Section 3.2 and Algorithm 2 of [Preble].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from heapq import merge
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from sortedcontainers import SortedList

from fairbench.core import Request
from fairbench.schedulers.routing.fleet import as_bits, members
from fairbench.schedulers.routing.preble_tree import PrebleNode, PrebleTree, WaitWindow

# Below ``TINY_PREFILL_TOKENS``, the fit of Preble's A100 prefill times has a second constant.
TINY_PREFILL_TOKENS = 64


@dataclass(frozen=True, slots=True)
class TimeModel:
    """A linear model of GPU time by token counts, in whole microseconds.

    The times are whole numbers, because rounding errors would accumulate in running sums of floats,
    and the loads of idle GPUs would no longer be equal.
    """

    prefill_ms_per_token: float
    prefill_base_ms: float
    prefill_linear_from_tokens: int
    prefill_short_ms: float
    prefill_tiny_ms: float
    decode_ms_per_token: float

    @classmethod
    def of_params(cls, params: Any, decode_ms_per_token: float) -> TimeModel:
        """Return the model that has the prefill times of a router's parameters."""
        names = (field.name for field in fields(cls) if field.name.startswith("prefill"))
        prefill = {name: getattr(params, name) for name in names}
        return cls(**prefill, decode_ms_per_token=decode_ms_per_token)

    def prefill_us(self, tokens: int) -> int:
        """Return the time to prefill ``tokens`` tokens, in microseconds."""
        if tokens >= self.prefill_linear_from_tokens:
            return round(1000 * (self.prefill_ms_per_token * tokens + self.prefill_base_ms))
        if tokens >= TINY_PREFILL_TOKENS:
            return round(1000 * self.prefill_short_ms)
        return round(1000 * self.prefill_tiny_ms)

    def decode_us(self, tokens: float) -> int:
        return round(1000 * self.decode_ms_per_token * tokens)


class GpuWindow:
    """The requests that a GPU was assigned or has finished in the last ``window_s`` seconds."""

    def __init__(self, window_s: float, times: TimeModel, default_output_tokens: float) -> None:
        self._window_s = window_s
        self._times = times
        self._default_output_tokens = default_output_tokens
        self._assigned: deque[tuple[float, int, PrebleNode]] = deque()
        self._finished: deque[tuple[float, int]] = deque()
        # ``prefill_us`` is the part of the load L for prefill.
        self.prefill_us = 0
        self._output_tokens = 0
        self._price_outputs()

    def _price_outputs(self) -> None:
        seen = len(self._finished)
        average = self._output_tokens / seen if seen else self._default_output_tokens
        self._decode_us = self._times.decode_us(average)

    @property
    def assigned_requests(self) -> int:
        """The number of requests that were assigned within the window."""
        return len(self._assigned)

    @property
    def load_us(self) -> int:
        """The load L: the prefill times plus the decode time of a mean output for each request."""
        return self.prefill_us + len(self._assigned) * self._decode_us

    @property
    def decode_us(self) -> int:
        return len(self._assigned) * self._decode_us

    def loads_below(self, node: PrebleNode) -> dict[PrebleNode, tuple[int, int]]:
        """Return the number and load of the window's requests below each child of ``node``."""
        found: dict[PrebleNode, tuple[int, int]] = {}
        for _, prefill_us, end in self._assigned:
            child = end
            while child.parent is not None and child.parent is not node:
                child = child.parent
            if child.parent is node:
                requests, load_us = found.get(child, (0, 0))
                found[child] = (requests + 1, load_us + prefill_us + self._decode_us)
        return found

    def assign(self, now_s: float, prefill_us: int, end: PrebleNode) -> None:
        """Add a request to this GPU; ``prefill_us`` is the prefill time of its uncached tokens."""
        self._assigned.append((now_s, prefill_us, end))
        self.prefill_us += prefill_us

    def add_finished(self, now_s: float, output_tokens: int) -> None:
        self._finished.append((now_s, output_tokens))
        self._output_tokens += output_tokens
        self._price_outputs()

    def expire(self, now_s: float) -> list[PrebleNode]:
        """Remove requests that have left the window; return the last nodes of their prompts."""
        start_s = now_s - self._window_s
        while self._finished and self._finished[0][0] <= start_s:
            self._output_tokens -= self._finished.popleft()[1]
            self._price_outputs()
        dropped: list[PrebleNode] = []
        while self._assigned and self._assigned[0][0] <= start_s:
            _, prefill_us, end = self._assigned.popleft()
            self.prefill_us -= prefill_us
            dropped.append(end)
        return dropped


# At most ``FEW`` workers are examined one by one.
FEW = 16


class Loads:
    """The load L of each worker, and the workers of each load. Sets of workers are bits."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
        # ``_with`` maps loads in microseconds to the workers with this load.
        self._with: dict[int, int] = {}
        self._different = SortedList()

    def __getitem__(self, worker: int) -> int:
        return self._of[worker]

    def put_load(self, worker: int, load_us: int) -> None:
        if self._of.get(worker) == load_us:
            return
        self.drop_load(worker)
        self._of[worker] = load_us
        if load_us not in self._with:
            self._different.add(load_us)
        self._with[load_us] = self._with.get(load_us, 0) | 1 << worker

    def drop_load(self, worker: int) -> None:
        load_us = self._of.pop(worker, None)
        if load_us is None:
            return
        self._with[load_us] ^= 1 << worker
        if not self._with[load_us]:
            del self._with[load_us]
            self._different.remove(load_us)

    @property
    def lightest_us(self) -> int:
        least: int = self._different[0]
        return least

    @property
    def heaviest_us(self) -> int:
        most: int = self._different[-1]
        return most

    def ascending(self, among: int) -> Iterator[tuple[int, int]]:
        """Yield the loads of a set of workers, the least first, with the workers of each load."""
        if among.bit_count() <= FEW:
            found: dict[int, int] = {}
            for worker in members(among):
                load_us = self._of[worker]
                found[load_us] = found.get(load_us, 0) | 1 << worker
            yield from sorted(found.items())
            return
        for load_us in self._different:
            if workers := self._with[load_us] & among:
                yield load_us, workers
                among ^= workers
                if not among:
                    return

    def lightest(self, among: int) -> int:
        """Return the workers (bits) with the least load in a set that is not empty."""
        return next(self.ascending(among))[1]


# Two ratios whose relative distance is below ``ROUNDING`` are compared exactly.
ROUNDING = 1e-12


class Windows:
    """The ``GpuWindow`` of each worker, their ``loads``, and sums over all windows."""

    def __init__(
        self,
        window_s: float,
        times: TimeModel,
        default_output_tokens: float,
        workers: Iterable[int] = (),
    ) -> None:
        self.loads = Loads()
        self._window_s = window_s
        self._times = times
        self._default_output_tokens = default_output_tokens
        self._of: dict[int, GpuWindow] = {}
        # An entry of ``_due`` has the time in seconds of a dispatch or an end, and a worker; the
        # oldest entry comes first.
        self._due: deque[tuple[float, int]] = deque()
        # ``_prefill`` maps workers to the parts of their loads L for prefill.
        self._prefill: dict[int, int] = {}
        self._decode: dict[int, int] = {}
        # ``_ratios`` maps workers with prefill to ratios of decoding to prefill.
        self._ratios: dict[int, float] = {}
        self._prefill_us = self._decode_us = 0
        for worker in workers:
            self.add_gpu(worker)

    def __getitem__(self, worker: int) -> GpuWindow:
        return self._of[worker]

    def add_gpu(self, worker: int) -> None:
        self._of[worker] = GpuWindow(self._window_s, self._times, self._default_output_tokens)
        self._update_sums(worker)

    def drop_gpu(self, worker: int) -> None:
        del self._of[worker]
        self.loads.drop_load(worker)
        self._prefill_us -= self._prefill.pop(worker)
        self._decode_us -= self._decode.pop(worker)
        self._ratios.pop(worker, None)

    def assign(self, worker: int, now_s: float, prefill_us: int, end: PrebleNode) -> None:
        """Record a request that is sent to the worker; see ``GpuWindow.assign``."""
        self._of[worker].assign(now_s, prefill_us, end)
        self._due.append((now_s, worker))
        self._update_sums(worker)

    def add_finished(self, worker: int, now_s: float, output_tokens: int) -> None:
        self._of[worker].add_finished(now_s, output_tokens)
        self._due.append((now_s, worker))
        self._update_sums(worker)

    def expire(self, now_s: float) -> Iterator[tuple[int, PrebleNode]]:
        """Remove requests that have left the window; yield the worker and last node of each."""
        start_s = now_s - self._window_s
        due = set()
        while self._due and self._due[0][0] <= start_s:
            due.add(self._due.popleft()[1])
        for worker in sorted(due & self._of.keys()):
            for end in self._of[worker].expire(now_s):
                yield worker, end
            self._update_sums(worker)

    def decode_heavy(self, imbalance_ratio: float) -> int:
        """Return the GPUs (bits) with unusually much decoding per prefill, or 0.

        The ratio of a GPU is its decoding time over prefill time, relative to all GPUs together.
        The GPUs with the highest ratio are returned if the ratio is above ``imbalance_ratio``. A
        GPU that only serves cached prefixes has spare compute, which the prefill of an explored
        request can use ([Preble] §3.2).
        """
        if not self._prefill_us or not self._decode_us or imbalance_ratio == inf:
            return 0
        limit, most = imbalance_ratio * self._decode_us, max(self._ratios.values())
        if most * self._prefill_us * (1 + ROUNDING) <= limit:
            return 0
        exact = {
            worker: self._decode[worker] * self._prefill_us / self._prefill[worker]
            for worker, ratio in self._ratios.items()
            if ratio >= most * (1 - ROUNDING)
        }
        highest = max(exact.values())
        if highest <= limit:
            return 0
        return as_bits(worker for worker, ratio in exact.items() if ratio == highest)

    def _update_sums(self, worker: int) -> None:
        window = self._of[worker]
        prefill_us, decode_us = window.prefill_us, window.decode_us
        self._prefill_us += prefill_us - self._prefill.get(worker, 0)
        self._decode_us += decode_us - self._decode.get(worker, 0)
        self._prefill[worker], self._decode[worker] = prefill_us, decode_us
        if prefill_us:
            self._ratios[worker] = decode_us / prefill_us
        else:
            self._ratios.pop(worker, None)
        self.loads.put_load(worker, prefill_us + decode_us)


# At most ``EVICTION_SCAN_NODES`` nodes are examined per GPU to price an eviction; further nodes get
# the same price.
EVICTION_SCAN_NODES = 128


class EvictionCost:
    """The cost of the evictions that a request would cause ([gaps] D1).

    The cost of an evicted node is its prefill time times the fraction of the GPU's requests that
    use the node.

    ``capacity_tokens`` is the size of a worker's KV pool in tokens; with 0 (unknown), evictions
    cost nothing.
    """

    def __init__(self, tree: PrebleTree, times: TimeModel, capacity_tokens: int) -> None:
        self._tree = tree
        self._times = times
        self.capacity_tokens = capacity_tokens

    def price_us(
        self, worker: int, missed: int, keep: Collection[PrebleNode], requests: int
    ) -> float:
        """Return the cost of making room for ``missed`` tokens, in microseconds.

        ``requests`` is the number of requests in the worker's window. ``keep`` is the path of the
        new request, whose nodes are never evicted for this request.
        """
        needed = self._tree.held_tokens[worker] + missed - self.capacity_tokens
        if not self.capacity_tokens or needed <= 0 or not requests:
            return 0
        freed = price_us = 0
        victims = self._tree.victims(worker, needed, keep)
        for node, tokens in islice(victims, EVICTION_SCAN_NODES):
            freed += tokens
            price_us += self._times.prefill_us(tokens) * node.hits.get(worker, 0)
        # The examined nodes may free too little, so their price is scaled up to all needed tokens.
        return price_us * needed / freed / requests if freed else 0


class Missed(NamedTuple):
    """The number of ``tokens`` of a prompt that each of the ``workers`` (bits) has not cached."""

    tokens: int
    workers: int


def missed_by(everyone: int, tokens: int, tree: PrebleTree, node: PrebleNode) -> list[Missed]:
    """Return how many tokens of a prompt the workers lack, the least first."""
    rest, missed = everyone, []
    for depth, workers in tree.levels(node):
        missed.append(Missed(tokens - depth, workers))
        rest &= ~workers
    return [*missed, Missed(tokens, rest)]


class LoadCost:
    """The cost L + M + P of [Preble] Alg. 2 in microseconds; M is 0 without ``evictions``."""

    def __init__(
        self, windows: Windows, times: TimeModel, tree: PrebleTree, evictions: EvictionCost | None
    ) -> None:
        self._windows = windows
        self._times = times
        self._tree = tree
        self._evictions = evictions

    def cheapest(self, among: int, missed: Sequence[Missed], node: PrebleNode) -> int:
        """Return the workers (bits) with the lowest cost; the cached prefix ends at ``node``.

        Workers with the least L + P are examined first, so that M is computed only for workers that
        may win.
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
                eviction_us = evictions.price_us(worker, tokens, keep, window.assigned_requests)
                cost_us = window.load_us + eviction_us + prefill_us
                if cost_us < least:
                    least, tied = cost_us, 0
                if cost_us == least:
                    tied |= 1 << worker
        return tied

    def _offers(self, among: int, missed: Missed) -> Iterator[tuple[int, int, int]]:
        """Yield each L + P, the least first, and the workers with this cost and equal misses."""
        prefill_us = self._times.prefill_us(missed.tokens)
        for load_us, workers in self._windows.loads.ascending(missed.workers & among):
            yield load_us + prefill_us, missed.tokens, workers


class Sent(NamedTuple):
    """A dispatched request: its last node, and the earliest time of its first token."""

    end: PrebleNode
    worker: int
    soonest_s: float


class Autoscaler:
    """A monitor of the queueing time of each prefix at each of its GPUs ([Preble] §3.2).

    A prefix is identified by its key portion: the deepest node of a path that is longer than all
    nodes above it together ([Preble] §A). A prefix is overloaded on a GPU if the mean queueing time
    of the prefix's requests in the newer half of the window is at least ``factor`` times the mean
    in the older half, as in Preble's code. The mean in the newer half must also exceed the time to
    compute the prefix, because otherwise a copy would cost more than the copy saves. The queueing
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

    def overloaded(self, key: PrebleNode, worker: int, now_s: float) -> bool:
        """Return whether queueing for the prefix on this GPU has grown too long."""
        halves = key.waits[worker].halves(now_s) if worker in key.waits else None
        if halves is None:
            return False
        older_s, newer_s = halves
        copy_s = self._times.prefill_us(key.depth) / 10**6
        return newer_s >= self._factor * older_s and newer_s > copy_s


def key_portion(end: PrebleNode) -> PrebleNode:
    """Return the key portion of the path to ``end`` ([Preble] §A).

    The key portion is the deepest node at or above ``end`` whose edge is longer than all edges
    above it together. The uppermost node of a path always satisfies this; the key portion of the
    root is the root.
    """
    node = end
    while node.parent is not None and 2 * node.length <= node.depth:
        node = node.parent
    return node


def split_subtree(key: PrebleNode, window: GpuWindow, to: int, tree: PrebleTree) -> None:
    """Send future requests for half of the load below the prefix ``key`` to the GPU ``to``.

    The load of a child node is the load of the window's requests whose prompts pass through the
    child ([Preble] Alg. 2). A child with a single request is not moved, because no further request
    may come. For requests that end at the prefix itself, the router chooses the GPU with less load.
    """
    shared = {c: load for c, (requests, load) in window.loads_below(key).items() if requests > 1}
    stays = goes = 0
    for child in sorted(shared, key=lambda one: -shared[one]):
        if goes < stays:
            goes += shared[child]
            tree.pin(child, to)
        else:
            stays += shared[child]
