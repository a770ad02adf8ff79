"""The windows of all GPUs, stored so that no decision has to examine every GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import inf

from fairbench.schedulers.routing.loads import Loads
from fairbench.schedulers.routing.preble_load import GpuWindow, TimeModel
from fairbench.schedulers.routing.preble_tree import PrebleNode
from fairbench.schedulers.worker_sets import as_bits

ROUNDING = 1e-12  # relative distance of ratios below which they are computed exactly


class Windows:
    """The ``GpuWindow`` of each worker, their ``loads``, and sums over all windows."""

    def __init__(self, window_s: float, times: TimeModel, default_output_tokens: float) -> None:
        self.loads = Loads()
        self._window_s = window_s
        self._times = times
        self._default_output_tokens = default_output_tokens
        self._of: dict[int, GpuWindow] = {}
        # the times of arrivals in a window, and of ends
        self._due: deque[tuple[float, int]] = deque()
        self._prefill: dict[int, int] = {}  # the parts of the load L
        self._decode: dict[int, int] = {}
        self._ratios: dict[int, float] = {}  # ratio of decoding to prefill, if there is any prefill
        self._prefill_us = self._decode_us = 0

    def __getitem__(self, worker: int) -> GpuWindow:
        return self._of[worker]

    def join(self, worker: int) -> None:
        self._of[worker] = GpuWindow(self._window_s, self._times, self._default_output_tokens)
        self._changed(worker)

    def leave(self, worker: int) -> None:
        del self._of[worker]
        self.loads.drop(worker)
        self._prefill_us -= self._prefill.pop(worker)
        self._decode_us -= self._decode.pop(worker)
        self._ratios.pop(worker, None)

    def assign(self, worker: int, now_s: float, prefill_us: int, end: PrebleNode) -> None:
        """Record a request that is sent to the worker, as ``GpuWindow.assign`` does."""
        self._of[worker].assign(now_s, prefill_us, end)
        self._due.append((now_s, worker))
        self._changed(worker)

    def finish(self, worker: int, now_s: float, output_tokens: int) -> None:
        self._of[worker].finish(now_s, output_tokens)
        self._due.append((now_s, worker))
        self._changed(worker)

    def expire(self, now_s: float) -> Iterator[tuple[int, PrebleNode]]:
        """Remove requests older than the window; yield the worker and last node of each."""
        start_s = now_s - self._window_s
        due = set()
        while self._due and self._due[0][0] <= start_s:
            due.add(self._due.popleft()[1])
        for worker in sorted(due & self._of.keys()):
            for end in self._of[worker].expire(now_s):
                yield worker, end
            self._changed(worker)

    def decode_heavy(self, imbalance_ratio: float) -> int:
        """Return the GPUs (bits) with unusually much decoding per prefill, else 0.

        A GPU qualifies if its decoding time over its prefill time, relative to the ratio of all
        GPUs together, is the highest and above ``imbalance_ratio``. Tied GPUs are all returned. A
        GPU that only serves cached prefixes has spare compute, and an explored request adds prefill
        ([Preble] §3.2).
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

    def _changed(self, worker: int) -> None:
        window = self._of[worker]
        prefill_us, decode_us = window.prefill_us, window.decode_us
        self._prefill_us += prefill_us - self._prefill.get(worker, 0)
        self._decode_us += decode_us - self._decode.get(worker, 0)
        self._prefill[worker], self._decode[worker] = prefill_us, decode_us
        if prefill_us:
            self._ratios[worker] = decode_us / prefill_us
        else:
            self._ratios.pop(worker, None)
        self.loads.put(worker, prefill_us + decode_us)
