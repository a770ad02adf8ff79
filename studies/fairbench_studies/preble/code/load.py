"""The load of a GPU as Preble's code estimates it, in seconds ([Preble code])."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import islice
from statistics import median

from fairbench.schedulers.parts.preble_costs import EVICTION_SCAN_NODES
from fairbench.schedulers.parts.preble_windows import GpuWindow, TimeModel
from fairbench_studies.preble.code.tree import CodeTree, KeyCount

TPOTS = 200  # A GPU's load uses the median of its latest ``TPOTS`` times per output token.


class CodeGpu:
    """The load data of a GPU: recent requests, times per output token, and cache hits."""

    def __init__(
        self, window_s: float, hit_window_s: float, first_tpot_s: float, times: TimeModel
    ) -> None:
        self.window = GpuWindow(window_s, times, 0)
        self.tpot_s = first_tpot_s  # median of the latest times per output token, in seconds
        self._tpots = deque([first_tpot_s], TPOTS)
        self._hit_window_s = hit_window_s
        self._hits: deque[tuple[float, int, int]] = deque()
        self._cached = self._tokens = 0

    @property
    def hit_ratio(self) -> float:
        """The cached fraction of recent prompt tokens, or 0 if there are no recent prompts."""
        return self._cached / self._tokens if self._tokens else 0.0

    def hit(self, now_s: float, cached: int, tokens: int) -> None:
        """Record a prompt of ``tokens`` tokens, of which ``cached`` tokens were cached."""
        self._hits.append((now_s, cached, tokens))
        self._cached += cached
        self._tokens += tokens

    def decoded(self, tpot_s: float) -> None:
        """Record the time per output token of a request, in seconds."""
        self._tpots.append(tpot_s)
        self.tpot_s = median(self._tpots)

    def expire(self, now_s: float) -> None:
        """Forget prompts that are too old to count in the hit ratio."""
        while self._hits and self._hits[0][0] <= now_s - self._hit_window_s:
            _, cached, tokens = self._hits.popleft()
            self._cached -= cached
            self._tokens -= tokens


class CodeLoad:
    """Estimates of GPU load: the times for prefill and decoding, summed over key nodes."""

    def __init__(self, tree: CodeTree, times: TimeModel, gpus: Mapping[int, CodeGpu]) -> None:
        self.tree = tree
        self.gpus = gpus
        self._times = times
        # Prefill times in seconds are cached by length in tokens, because the same lengths recur.
        self._prefill_of_s: dict[int, float] = {}

    def of_gpus(self, min_hits: int) -> dict[int, float]:
        """Return each GPU's load in seconds.

        The sum includes only tree nodes with at least ``min_hits`` requests.
        """
        loads = dict.fromkeys(self.gpus, 0.0)
        under_way = {worker: self.tree.under_way[worker] for worker in loads}
        for key in self.tree.keys.values():
            if key.requests < min_hits or not (bits := self.tree.allocated.get(key.node, 0)):
                continue
            prefill_s = self._prefill_s(key, bits.bit_count())
            for worker, counts in under_way.items():
                if bits >> worker & 1:
                    busy = key.node in counts
                    loads[worker] += prefill_s + (self._decode_s(key, worker) if busy else 0.0)
        return loads

    def key_s(self, key: KeyCount, worker: int) -> float:
        """Return the prefill and decoding time (s) of a node's requests on the GPU ``worker``."""
        gpus = self.tree.allocated.get(key.node, 0).bit_count() or 1
        return self._prefill_s(key, gpus) + self._decode_s(key, worker)

    def _prefill_s(self, key: KeyCount, gpus: int) -> float:
        """Return the prefill time (s) of a node's requests on each of the node's GPUs."""
        length = key.node.length
        prefill_s = self._prefill_of_s.get(length)
        if prefill_s is None:
            prefill_s = self._prefill_of_s[length] = self._times.prefill_us(length) / 10**6
        return key.miss_rate * key.requests * prefill_s / gpus

    def _decode_s(self, key: KeyCount, worker: int) -> float:
        under_way = self.tree.under_way[worker].get(key.node, 0)
        return under_way * key.output_tokens * self.gpus[worker].tpot_s

    def eviction_s(self, worker: int, tokens: int) -> float:
        """Return the cost in seconds of evicting ``tokens`` tokens from a GPU's full cache."""
        cost_s = 0.0
        victims = self.tree.victims(worker, tokens, keep=self.tree.under_way[worker])
        for node, _ in islice(victims, EVICTION_SCAN_NODES):
            if (key := self.tree.keys.get(node)) is not None:
                prefill_s = self._times.prefill_us(node.length) / 10**6
                cost_s += key.miss_rate * key.requests * prefill_s
        return cost_s
