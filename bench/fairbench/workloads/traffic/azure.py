"""The arrival pattern of a recorded trace ([Preble] §4.3): its gaps at the requested rate."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from fairbench.errors import DataError
from fairbench.files.csv_text import csv_rows
from fairbench.workloads.traffic.gamma import Gamma, GammaArrivals, Rate
from fairbench.workloads.traffic.source import Load

COLUMN = "TIMESTAMP"


@dataclass(frozen=True, slots=True)
class AzureArrivals(GammaArrivals):
    """Gaps of a trace scaled to mean 1, repeated from a position that the seed chooses."""

    path: str = ""

    def gaps(self, rng: random.Random) -> Iterator[float]:
        recorded = trace_gaps(self.path)
        at = rng.randrange(len(recorded))
        while True:
            yield recorded[at]
            at = (at + 1) % len(recorded)


class Azure(Gamma):
    """The kind ``azure``: request times of a file such as Azure's LLM inference trace.

    Clients begin at different positions of the trace. The scenario sets the rate; ``--burstiness``
    has no effect here and is refused.
    """

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``path`` is a CSV file (.gz allowed) with a sorted column ``TIMESTAMP``."""

        path: str

    def arrivals(self, rates: tuple[Rate, ...], load: Load) -> AzureArrivals:
        load.check_plain("arrivals of kind azure, whose trace sets it")
        trace_gaps(self.params.path)  # errors of the file are reported before the run
        return AzureArrivals(rates, 1.0, load.num_programs, load.until_s, self.params.path)


@lru_cache(maxsize=4)
def trace_gaps(path: str) -> tuple[float, ...]:
    """Return the gaps of a trace, scaled to mean 1. Raises DataError (file, line) if unreadable.

    Simultaneous requests have gaps of 0.
    """
    times: list[datetime] = []
    for number, row in csv_rows(Path(path), f"arrivals {path}"):
        text = row.get(COLUMN)
        if text is None:
            raise DataError(f"{path}, line {number}: missing column {COLUMN!r}")
        try:
            # Azure writes tenths of microseconds, which Python does not read.
            times.append(datetime.fromisoformat(text.strip()[:26]))
        except ValueError:
            raise DataError(f"{path}, line {number}: {text!r} is not a time") from None
        if len(times) > 1 and times[-1] < times[-2]:
            raise DataError(
                f"{path}, line {number}: time {text!r} must not be before the time of the "
                "previous line"
            )
    if len(times) < 2 or times[0] == times[-1]:
        raise DataError(f"{path}: must have requests at two or more different times")
    mean = (times[-1] - times[0]).total_seconds() / (len(times) - 1)
    return tuple((later - before).total_seconds() / mean for before, later in pairwise(times))
