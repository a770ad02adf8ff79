"""When programs arrive: a Gamma renewal process per client (000:L307), and the named streams."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import inf
from typing import NamedTuple


class Rate(NamedTuple):
    """From ``start_s`` on, so many programs per second (above 0; ``inf`` is all at once)."""

    start_s: float
    programs_per_s: float


def stream(seed: int, name: str) -> random.Random:
    """The random stream of one purpose; seeded by text, so no hash seed can change it."""
    return random.Random(f"{seed}/{name}")


def arrival_times(
    rng: random.Random, rates: tuple[Rate, ...], burstiness: float
) -> Iterator[float]:
    """Endless arrival times in seconds, never decreasing.

    Gaps are Gamma with shape ``burstiness`` (CV = 1/sqrt(burstiness); 1 is Poisson), stretched by
    the rate that holds: one unit of gap passes ``programs_per_s`` times a second.
    """
    now, piece = rates[0].start_s, 0
    while True:
        gap = rng.gammavariate(burstiness, 1 / burstiness)
        while True:
            rate = rates[piece].programs_per_s
            end = rates[piece + 1].start_s if piece + 1 < len(rates) else inf
            if now + gap / rate <= end:
                break
            gap -= (end - now) * rate
            now, piece = end, piece + 1
        now += gap / rate
        yield now
