"""Queueing times of one prefix on one GPU, in the halves of a window ([Preble] §3.2)."""

from __future__ import annotations

from collections import deque


class Waits:
    """Waiting times in a window, whose newer half is compared with its older half."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, float]] = deque()

    def add(self, now_s: float, wait_s: float) -> None:
        self._seen.append((now_s, wait_s))
        self._expire(now_s)

    def halves(self, now_s: float) -> tuple[float, float] | None:
        """Return the mean wait of the older and the newer half; None if either half is empty."""
        self._expire(now_s)
        middle_s = now_s - self._window_s / 2
        older = [wait_s for at_s, wait_s in self._seen if at_s < middle_s]
        newer = [wait_s for at_s, wait_s in self._seen if at_s >= middle_s]
        if not older or not newer:
            return None
        return sum(older) / len(older), sum(newer) / len(newer)

    def copy(self) -> Waits:
        same = Waits(self._window_s)
        same._seen = deque(self._seen)
        return same

    def _expire(self, now_s: float) -> None:
        while self._seen and self._seen[0][0] <= now_s - self._window_s:
            self._seen.popleft()
