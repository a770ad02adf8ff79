"""An estimate of a sweep's duration on this machine, printed before the start."""

from __future__ import annotations

import os
from collections.abc import Iterable
from time import process_time
from typing import NamedTuple

ADDITIONS = 500_000  # timed: some hundredths of a second
ADDITIONS_PER_REQUEST = 10_000  # bundled workloads under six schedulers: 4,500 to 30,000
BYTES_PER_REQUEST = 220  # of the stored tables
LARGE = 200_000  # requests: above that it is said


class Estimate(NamedTuple):
    """The estimated cost of several simulations: total requests, seconds and bytes.

    The seconds are for this machine under its present load. They are right within a factor of
    three, since requests differ in cost and the machine's load may change. ``load`` is the number
    of other processes that want a processor.
    """

    runs: int
    requests: float
    seconds: float
    bytes: float
    load: float

    @property
    def large(self) -> bool:
        """Return whether the work is large enough to announce."""
        return self.requests > LARGE

    def __str__(self) -> str:
        minutes = max(1, round(self.seconds / 60))
        busy = f", which are shared with {self.load:.0f} busy processes" if self.load >= 0.5 else ""
        return (
            f"{self.runs:,} simulations, about {self.requests:,.0f} requests: roughly {minutes:,} "
            f"min on {_processors()} processors{busy}, {self.bytes / 1e6:,.0f} MB of records"
        )


def estimate(requests: Iterable[float]) -> Estimate:
    """Estimate simulations with the given request counts, run in parallel on all processors."""
    counts = list(requests)
    total, load, processors = sum(counts), _load(), _processors()
    share = processors / (processors + load)  # of its processor's time that each simulation gets
    seconds = total * ADDITIONS_PER_REQUEST * _addition_s() / processors / share
    return Estimate(len(counts), total, seconds, total * BYTES_PER_REQUEST, load)


def _processors() -> int:
    return os.cpu_count() or 1


def _load() -> float:
    """Return the recent number of runnable processes; 0 if the system does not report it."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0


def _addition_s() -> float:
    """Measure a plain addition, to account for the speed of this machine."""
    begun_s, left = process_time(), ADDITIONS
    while left:
        left += -1
    return (process_time() - begun_s) / ADDITIONS
