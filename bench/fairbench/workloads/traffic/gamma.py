"""A Gamma renewal process ([DLPM] §6.1) whose rate changes at given times."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from math import inf
from typing import Any, NamedTuple

from fairbench.workloads.traffic.source import Arrival, ArrivalSource, Load, TrafficKind


class Rate(NamedTuple):
    """A rate in programs/s above 0 (``inf``: all at once), which applies from ``start_s`` on."""

    start_s: float
    programs_per_s: float


@dataclass(frozen=True, slots=True)
class GammaArrivals(ArrivalSource):
    """A client's arrivals: an ``ArrivalSource``.

    Arrivals end after ``num_programs`` programs (None: no limit) or at ``until_s``, whichever comes
    first. ``burstiness`` is the shape of the gamma distribution of gaps.
    """

    rates: tuple[Rate, ...]
    burstiness: float = 1.0
    num_programs: int | None = None
    until_s: float = inf

    def arrivals(self, rng: random.Random) -> Iterator[Arrival]:
        for number, at_s in enumerate(stretched(self.gaps(rng), self.rates)):
            if number == self.num_programs or at_s >= self.until_s:
                return
            yield Arrival(at_s)

    def gaps(self, rng: random.Random) -> Iterator[float]:
        """Yield endless gaps at a rate of 1."""
        return gamma_gaps(rng, self.burstiness)

    def expected_programs(self, before_s: float = inf) -> float:
        until_s = min(before_s, self.until_s)
        ends = [rate.start_s for rate in self.rates[1:]] + [until_s]
        arriving = sum(
            rate.programs_per_s * max(0.0, min(end_s, until_s) - rate.start_s)
            for rate, end_s in zip(self.rates, ends, strict=True)
        )
        return arriving if self.num_programs is None else min(arriving, self.num_programs)


class Gamma(TrafficKind):
    """The kind ``gamma``: the requested rates, with gaps of the requested burstiness."""

    @dataclass(frozen=True)
    class Params:
        """No parameters: the scenario and the command line set rate and burstiness."""

    def __init__(self, params: Any) -> None:
        self.params = params

    def usual(self, load: Load) -> GammaArrivals:
        return self.arrivals((Rate(0.0, load.programs_per_s),), load)

    def misbehaving(
        self, load: Load, rate_multiple: float, until_fraction: float | None
    ) -> GammaArrivals:
        rate, wanted = load.programs_per_s, load.num_programs
        rates: tuple[Rate, ...] = (Rate(0.0, rate * rate_multiple),)
        work = rate_multiple
        if until_fraction is not None:
            work = until_fraction * rate_multiple + (1 - until_fraction)
            if rate < inf:
                length_s = load.until_s if wanted is None else min(load.until_s, wanted / rate)
                rates = (*rates, Rate(until_fraction * length_s, rate))
        count = None if wanted is None else max(1, round(wanted * work))
        return self.arrivals(rates, load._replace(num_programs=count))

    def arrivals(self, rates: tuple[Rate, ...], load: Load) -> GammaArrivals:
        """Return arrivals at these rates, which replace the load's rate."""
        return GammaArrivals(rates, load.burstiness, load.num_programs, load.until_s)


def gamma_gaps(rng: random.Random, burstiness: float) -> Iterator[float]:
    """Yield gaps with mean 1 from a Gamma distribution with shape ``burstiness``.

    The coefficient of variation is 1/sqrt(burstiness): 1 is Poisson, infinity is even.
    """
    if burstiness == inf:
        yield from repeat(1.0)
    while True:
        yield rng.gammavariate(burstiness, 1 / burstiness)


def stretched(gaps: Iterator[float], rates: tuple[Rate, ...]) -> Iterator[float]:
    """Yield arrival times in seconds: one unit of gap takes 1/``programs_per_s`` seconds."""
    now, piece = rates[0].start_s, 0
    for unit in gaps:
        gap = unit
        while True:
            rate = rates[piece].programs_per_s
            end = rates[piece + 1].start_s if piece + 1 < len(rates) else inf
            if now + gap / rate <= end:
                break
            gap -= (end - now) * rate
            now, piece = end, piece + 1
        now += gap / rate
        yield now
