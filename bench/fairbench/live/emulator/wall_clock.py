"""The simulation's clock, coupled to real time."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from fairbench.core import PS_PER_S
from fairbench.sim.clock import Clock


class WallClock:
    """A clock that runs ``scale`` seconds per real second.

    Waits end at absolute times, so they do not drift. ``time_s`` must be the time that the event
    loop's ``call_at`` goes by.
    """

    def __init__(self, scale: float, time_s: Callable[[], float] = monotonic) -> None:
        self.clock = Clock()
        self._time_s = time_s
        self._start_s = time_s()
        self.scale = scale
        self._ps_per_s = scale * PS_PER_S

    def now_s(self) -> float:
        """Return the time on ``clock`` in seconds, as if it had caught up with real time."""
        return (self._time_s() - self._start_s) * self.scale

    def catch_up(self) -> None:
        """Run all events that are due, in order and each at its own time, and advance to now."""
        clock = self.clock
        now_ps = max(clock.now_ps, int((self._time_s() - self._start_s) * self._ps_per_s))
        while (next_ps := clock.next_ps()) is not None and next_ps <= now_ps:
            clock.step()
        clock.stop_at(now_ps)

    def real_s(self, time_ps: int) -> float:
        """Return the wall-clock time that corresponds to a time of ``clock``."""
        return self._start_s + time_ps / self._ps_per_s
