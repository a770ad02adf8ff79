"""The simulation's clock, which runs events at times in whole picoseconds."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

# At equal times, requests arrive first, then iterations end, and then workers decide.
ARRIVE, END, DECIDE = 0, 1, 2


Event = tuple[int, int, int, int, Callable[[], None]]
"""An event: its time (ps), priority, key, insertion number, and action."""


class Clock:
    """A clock that runs actions in the order of time, priority, key and insertion."""

    def __init__(self) -> None:
        self.now_ps = 0
        self.events: list[Event] = []
        self._latest: Event = (0, -1, 0, 0, _nothing)
        self._inserted = 0

    def at(self, time_ps: int, priority: int, key: int, action: Callable[[], None]) -> None:
        """Schedule ``action`` at ``time_ps``, which must not lie in the past."""
        assert time_ps >= self.now_ps, "the clock only moves forward"
        self._inserted += 1
        heappush(self.events, (time_ps, priority, key, self._inserted, action))

    def soon(self, priority: int, key: int, action: Callable[[], None]) -> None:
        """Run ``action`` now, ordered by priority among other events of the current time."""
        if self.events and self.events[0][0] == self.now_ps:
            self.at(self.now_ps, priority, key, action)
        else:
            action()

    def next_ps(self) -> int | None:
        return self.events[0][0] if self.events else None

    def step(self) -> None:
        event = heappop(self.events)
        if event > self._latest:
            self._latest = event
        self.now_ps = event[0]
        event[4]()

    def drop_events(self) -> None:
        """Remove all events to free the objects that they refer to."""
        self.events.clear()
        self._latest = (*self._latest[:4], _nothing)

    def past(self, priority: int, key: int) -> bool:
        """Return whether the current time's events of ``priority`` and ``key`` have already run."""
        return (priority, key) <= self._latest[1:3]

    def stop_at(self, time_ps: int) -> None:
        """Stop the clock at ``time_ps``. Precondition: all earlier events have run."""
        assert time_ps >= self.now_ps, "the clock only moves forward"
        self.now_ps, self._latest = time_ps, (time_ps, DECIDE + 1, 0, 0, _nothing)


def _nothing() -> None:
    pass
