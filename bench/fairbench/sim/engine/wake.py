"""A timer that lets an idle worker call its scheduler again without an event."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from fairbench.core import PS_PER_S
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.views import WaitingView
from fairbench.sim.clock import DECIDE, Clock


class WakeUp:
    """Calls ``awake`` at the time for which a scheduler that leaves room unused asks."""

    def __init__(self, clock: Clock, index: int, awake: Callable[[], None]) -> None:
        self._clock = clock
        self._index = index
        self._awake = awake
        self._wake_ps: int | None = None

    def rest(self, scheduler: LocalScheduler, waiting: WaitingView) -> None:
        """Set a wake-up for an idle worker whose scheduler left requests waiting."""
        if scheduler.work_conserving:
            return
        now_ps = self._clock.now_ps
        wake_s = scheduler.wake_s(waiting, now_ps / PS_PER_S)
        if wake_s is not None:
            self._at(max(now_ps + 1, ceil(wake_s * PS_PER_S)))

    def _at(self, time_ps: int) -> None:
        """Set a wake-up at ``time_ps`` unless an earlier one is set."""
        if self._wake_ps is None or not self._clock.now_ps < self._wake_ps <= time_ps:
            self._wake_ps = time_ps
            self._clock.at(time_ps, DECIDE, self._index, self._wake)

    def _wake(self) -> None:
        if self._clock.now_ps == self._wake_ps:
            self._wake_ps = None
            self._awake()
