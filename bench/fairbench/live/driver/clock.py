"""The time axis of a live run: seconds since its start, on the server's clock."""

from __future__ import annotations

import asyncio


class RunClock:
    """A clock at ``scale`` speed that reads 0 now or in ``starts_in_s`` wall seconds."""

    def __init__(self, scale: float = 1.0, starts_in_s: float = 0.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._scale = scale
        self._start_s = self._loop.time() + starts_in_s

    def now_s(self) -> float:
        return (self._loop.time() - self._start_s) * self._scale

    async def sleep_until(self, at_s: float) -> None:
        """Return at ``at_s`` or slightly later; return immediately if that time has passed.

        Deadlines are absolute, so one late event does not delay the following ones.
        """
        wall_s = self._start_s + at_s / self._scale
        await asyncio.sleep(max(0.0, wall_s - self._loop.time()))
