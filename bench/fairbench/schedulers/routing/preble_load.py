"""Preble's estimate of the load of GPUs: time of requests in a recent window ([Preble] §3.2)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from typing import Any

from fairbench.schedulers.routing.preble_tree import PrebleNode

# Below this number, the fit of Preble's A100 prefill times has a second constant.
TINY_PREFILL_TOKENS = 64


@dataclass(frozen=True, slots=True)
class TimeModel:
    """Regressions from token counts to GPU time in whole microseconds.

    The times are whole numbers, because running sums of floats drift, and idle GPUs would no longer
    tie.
    """

    prefill_ms_per_token: float
    prefill_base_ms: float
    prefill_linear_from_tokens: int
    prefill_short_ms: float
    prefill_tiny_ms: float
    decode_ms_per_token: float

    @classmethod
    def of(cls, params: Any, decode_ms_per_token: float) -> TimeModel:
        """Return the model with the prefill times that are among a router's parameters."""
        names = (field.name for field in fields(cls) if field.name.startswith("prefill"))
        prefill = {name: getattr(params, name) for name in names}
        return cls(**prefill, decode_ms_per_token=decode_ms_per_token)

    def prefill_us(self, tokens: int) -> int:
        """Return the time to compute prompt tokens, of which at least one is computed."""
        if tokens >= self.prefill_linear_from_tokens:
            return round(1000 * (self.prefill_ms_per_token * tokens + self.prefill_base_ms))
        if tokens >= TINY_PREFILL_TOKENS:
            return round(1000 * self.prefill_short_ms)
        return round(1000 * self.prefill_tiny_ms)

    def decode_us(self, tokens: float) -> int:
        return round(1000 * self.decode_ms_per_token * tokens)


class GpuWindow:
    """Requests assigned to, and finished on, one GPU within the last ``window_s`` seconds."""

    def __init__(self, window_s: float, times: TimeModel, default_output_tokens: float) -> None:
        self._window_s = window_s
        self._times = times
        self._default_output_tokens = default_output_tokens
        self._assigned: deque[tuple[float, int, PrebleNode]] = deque()
        self._finished: deque[tuple[float, int]] = deque()
        self.prefill_us = 0  # the prefill part of the load L
        self._output_tokens = 0
        self._price_outputs()

    def _price_outputs(self) -> None:
        seen = len(self._finished)
        average = self._output_tokens / seen if seen else self._default_output_tokens
        self._decode_us = self._times.decode_us(average)

    @property
    def requests(self) -> int:
        """The number of requests that were assigned within the window."""
        return len(self._assigned)

    @property
    def load_us(self) -> int:
        """The load L: prefill times, plus the time of a mean output for each request."""
        return self.prefill_us + len(self._assigned) * self._decode_us

    @property
    def decode_us(self) -> int:
        return len(self._assigned) * self._decode_us

    def loads_below(self, node: PrebleNode) -> dict[PrebleNode, tuple[int, int]]:
        """Return the window's requests and their part of L by child of ``node``, oldest first."""
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
        """Add a request to this GPU, with the prefill time of its missing tokens."""
        self._assigned.append((now_s, prefill_us, end))
        self.prefill_us += prefill_us

    def finish(self, now_s: float, output_tokens: int) -> None:
        self._finished.append((now_s, output_tokens))
        self._output_tokens += output_tokens
        self._price_outputs()

    def expire(self, now_s: float) -> list[PrebleNode]:
        """Drop requests that are at least ``window_s`` old; return the ends of their prompts."""
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
