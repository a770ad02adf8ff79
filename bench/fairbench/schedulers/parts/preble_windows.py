"""The loads of GPUs in a recent window, as in Preble ([Preble] Section 3.2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from math import inf
from typing import Any

from sortedcontainers import SortedList

from fairbench.schedulers.parts.fleet import as_bits, members
from fairbench.schedulers.parts.preble_tree import PrebleNode

# number of prompt tokens below which a prefill takes ``prefill_tiny_ms``
TINY_PREFILL_TOKENS = 64


@dataclass(frozen=True, slots=True)
class TimeModel:
    """A linear model of GPU time as a function of token counts, in whole microseconds.

    With floats, rounding errors would make the loads of idle GPUs unequal.
    """

    prefill_ms_per_token: float
    prefill_base_ms: float
    prefill_linear_from_tokens: int
    prefill_short_ms: float
    prefill_tiny_ms: float
    decode_ms_per_token: float

    @classmethod
    def of_params(cls, params: Any, decode_ms_per_token: float) -> TimeModel:
        names = (field.name for field in fields(cls) if field.name.startswith("prefill"))
        prefill = {name: getattr(params, name) for name in names}
        return cls(**prefill, decode_ms_per_token=decode_ms_per_token)

    def prefill_us(self, tokens: int) -> int:
        if tokens >= self.prefill_linear_from_tokens:
            return round(1000 * (self.prefill_ms_per_token * tokens + self.prefill_base_ms))
        if tokens >= TINY_PREFILL_TOKENS:
            return round(1000 * self.prefill_short_ms)
        return round(1000 * self.prefill_tiny_ms)

    def decode_us(self, tokens: float) -> int:
        return round(1000 * self.decode_ms_per_token * tokens)


class GpuWindow:
    """A GPU's requests that were assigned or finished in the last ``window_s`` seconds."""

    def __init__(self, window_s: float, times: TimeModel, default_output_tokens: float) -> None:
        self._window_s = window_s
        self._times = times
        self._default_output_tokens = default_output_tokens
        self._assigned: deque[tuple[float, int, PrebleNode]] = deque()
        self._finished: deque[tuple[float, int]] = deque()
        self.prefill_us = 0
        self._output_tokens = 0
        self._price_outputs()

    def _price_outputs(self) -> None:
        seen = len(self._finished)
        average = self._output_tokens / seen if seen else self._default_output_tokens
        self._decode_us = self._times.decode_us(average)

    @property
    def assigned_requests(self) -> int:
        return len(self._assigned)

    @property
    def load_us(self) -> int:
        """The load L (us): the prefill and expected decode times of all requests in the window."""
        return self.prefill_us + len(self._assigned) * self._decode_us

    @property
    def decode_us(self) -> int:
        return len(self._assigned) * self._decode_us

    def loads_below(self, node: PrebleNode) -> dict[PrebleNode, tuple[int, int]]:
        """Return the number and total load of the window's requests for each child of ``node``."""
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
        """Assign a request to this GPU; ``prefill_us`` is the prefill time of uncached tokens."""
        self._assigned.append((now_s, prefill_us, end))
        self.prefill_us += prefill_us

    def add_finished(self, now_s: float, output_tokens: int) -> None:
        self._finished.append((now_s, output_tokens))
        self._output_tokens += output_tokens
        self._price_outputs()

    def expire(self, now_s: float) -> list[PrebleNode]:
        """Remove requests older than the window, and return the last nodes of their prompts."""
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


# maximum number of workers that are examined one by one
FEW = 16


class Loads:
    """The load of each worker, and the set of workers that have each load."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}
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
        """Yield (load, workers with this load) for the workers in ``among``, lowest load first."""
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
        """Return the set of workers with the lowest load in a non-empty set."""
        return next(self.ascending(among))[1]


# relative rounding error of ``_ratios``; ratios that differ by less are compared more exactly
ROUNDING = 1e-12


class Windows:
    """Each worker's ``GpuWindow`` and load, and sums of times over the windows of all workers."""

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
        # ``_due`` holds the time (s) and the worker of each event, the oldest first. An event is
        # the dispatch or the end of a request.
        self._due: deque[tuple[float, int]] = deque()
        self._prefill: dict[int, int] = {}
        self._decode: dict[int, int] = {}
        # ``_ratios`` maps each worker with prefill load to its ratio of decode load to prefill
        # load.
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
        """Record a request that is sent to the worker (see ``GpuWindow.assign``)."""
        self._of[worker].assign(now_s, prefill_us, end)
        self._due.append((now_s, worker))
        self._update_sums(worker)

    def add_finished(self, worker: int, now_s: float, output_tokens: int) -> None:
        self._of[worker].add_finished(now_s, output_tokens)
        self._due.append((now_s, worker))
        self._update_sums(worker)

    def expire(self, now_s: float) -> Iterator[tuple[int, PrebleNode]]:
        """Remove requests that have left the window; yield their workers and last tree nodes."""
        start_s = now_s - self._window_s
        due = set()
        while self._due and self._due[0][0] <= start_s:
            due.add(self._due.popleft()[1])
        for worker in sorted(due & self._of.keys()):
            for end in self._of[worker].expire(now_s):
                yield worker, end
            self._update_sums(worker)

    def decode_heavy(self, imbalance_ratio: float) -> int:
        """Return the set of GPUs whose ratio of decoding time to prefill time is unusually high.

        The set contains only GPUs with the highest ratio, and is empty if this ratio is at most
        ``imbalance_ratio`` times the ratio of all GPUs' total times. A GPU that mostly decodes has
        spare compute for long prefills ([Preble] §3.2).
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
