"""The simulator's clock, which an engine's code reads instead of the machine's clock."""

from __future__ import annotations

import sys
import time
from math import inf, nextafter
from typing import Any

PS_PER_S = 10**12
NAMES = ("time", "monotonic", "perf_counter")


class VirtualTime:
    """A clock that tells an engine's code the simulated time.

    Each reading of the clock is slightly later than the previous reading, so that all entries of an
    LRU cache have different times.
    """

    def __init__(self) -> None:
        self._now_s, self._last_s = 0.0, 0.0
        self._last_ns = 0

    def set(self, now_ps: int) -> None:
        """Set the engine's clock to the simulator's time."""
        self._now_s = now_ps / PS_PER_S

    def now_s(self) -> float:
        """Return the simulator's time in seconds, which only ``set`` changes."""
        return self._now_s

    def seconds(self) -> float:
        self._last_s = max(self._now_s, nextafter(self._last_s, inf))
        return self._last_s

    def nanoseconds(self) -> int:
        self._last_ns = max(int(self._now_s * 10**9), self._last_ns + 1)
        return self._last_ns

    def install(self, package: str) -> None:
        """Make the module ``time`` and the modules of the engine ``package`` read this clock."""
        replaced: dict[int, Any] = {}
        for name in NAMES:
            replaced[id(getattr(time, name))] = self.seconds
            replaced[id(getattr(time, f"{name}_ns"))] = self.nanoseconds
        for name in NAMES:
            setattr(time, name, self.seconds)
            setattr(time, f"{name}_ns", self.nanoseconds)
        for module_name, module in list(sys.modules.items()):
            if module_name.partition(".")[0] != package:
                continue
            for name, value in list(vars(module).items()):
                if id(value) in replaced:
                    setattr(module, name, replaced[id(value)])
