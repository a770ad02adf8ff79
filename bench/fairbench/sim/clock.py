"""The event heap of the simulation. Time is integer picoseconds."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

# At one instant: requests arrive, then iterations end (worker by worker), then workers decide.
ARRIVE, END, DECIDE = 0, 1, 2


class Clock:
    """Runs callbacks in order of (time, priority, key, insertion)."""

    def __init__(self) -> None:
        self.now_ps = 0
        self._reached = (-1, 0)  # the latest (priority, key) that has run at this instant
        # A heap: (time, priority, key, insertion, action), the next one first.
        self.events: list[tuple[int, int, int, int, Callable[[], None]]] = []
        self._inserted = 0

    def at(self, time_ps: int, priority: int, key: int, action: Callable[[], None]) -> None:
        """Run ``action`` at ``time_ps``, which must not lie in the past."""
        assert time_ps >= self.now_ps, "the clock only moves forward"
        self._inserted += 1
        heappush(self.events, (time_ps, priority, key, self._inserted, action))

    def soon(self, priority: int, key: int, action: Callable[[], None]) -> None:
        """Run ``action`` at this instant, when its turn comes: at once if nothing else is due."""
        if self.events and self.events[0][0] == self.now_ps:
            self.at(self.now_ps, priority, key, action)
        else:
            action()

    def next_ps(self) -> int | None:
        """Time of the next event, None if there is none."""
        return self.events[0][0] if self.events else None

    def step(self) -> None:
        """Run the next event."""
        time_ps, priority, key, _, action = heappop(self.events)
        reached = priority, key
        if time_ps > self.now_ps or reached > self._reached:
            self._reached = reached
        self.now_ps = time_ps
        action()

    def clear(self) -> None:
        """Drop every event."""
        self.events.clear()

    def past(self, priority: int, key: int) -> bool:
        """Whether an event of this priority and key that was due now would have run by now."""
        return (priority, key) <= self._reached

    def stop_at(self, time_ps: int) -> None:
        """Go to ``time_ps``, by which everything that was due has run."""
        assert time_ps >= self.now_ps, "the clock only moves forward"
        self.now_ps, self._reached = time_ps, (DECIDE + 1, 0)
