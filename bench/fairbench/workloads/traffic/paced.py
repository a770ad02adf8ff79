"""Arrivals at even gaps, of a rate that changes by plan: what four kinds of traffic are made of.

[VTC]'s synthetic experiments send so: a rate fixed, on and off, or rising, each with a phase of its
own ([VTC-artifact], fair_bench/trace.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import inf, sqrt
from typing import Annotated, NamedTuple

from annotated_types import Ge, Gt

from fairbench.errors import UsageError
from fairbench.workloads.traffic.source import Arrival, Load


@dataclass(frozen=True, slots=True)
class Phase:
    """For ``for_s`` seconds ``multiple`` times the client's rate, up or down to ``to_multiple``.

    ``on_s`` above 0: only so long, then nothing for ``off_s``, and again. The last phase goes on
    for good, with the multiple that it has come to.
    """

    for_s: Annotated[float, Gt(0)]
    multiple: Annotated[float, Ge(0)]
    to_multiple: Annotated[float, Ge(0)] | None = None
    on_s: Annotated[float, Ge(0)] = 0.0
    off_s: Annotated[float, Ge(0)] = 0.0

    def __post_init__(self) -> None:
        if bool(self.on_s) != bool(self.off_s):
            raise ValueError(f"on_s = {self.on_s:g}: goes with off_s, both above 0 or neither")
        if self.on_s and self.to_multiple is not None:
            raise ValueError("to_multiple: not with on_s and off_s")


class _Piece(NamedTuple):
    """A rate that goes from ``rate`` to ``to_rate`` programs/s within [start_s, end_s)."""

    start_s: float
    end_s: float
    rate: float
    to_rate: float

    @property
    def slope(self) -> float:
        return (
            0.0 if self.end_s == inf else (self.to_rate - self.rate) / (self.end_s - self.start_s)
        )

    def programs(self, until_s: float = inf) -> float:
        """How many arrive before ``until_s``."""
        length_s = max(0.0, min(self.end_s, until_s) - self.start_s)
        if self.rate == self.to_rate:
            return self.rate * length_s if self.rate else 0.0
        return (self.rate + self.slope * length_s / 2) * length_s

    def when(self, programs: float) -> float:
        """When so many of its programs have arrived. Precondition: it has that many."""
        root = sqrt(max(0.0, self.rate**2 + 2 * self.slope * programs))
        return self.start_s + (2 * programs / (self.rate + root) if programs else 0.0)


@dataclass(frozen=True, slots=True)
class PacedArrivals:
    """One client's arrivals: an ``ArrivalSource``. The first comes at a random part of a gap."""

    programs_per_s: float
    phases: tuple[Phase, ...]
    num_programs: int | None = None
    until_s: float = inf

    @property
    def timed(self) -> bool:
        return False

    def arrivals(self, rng: random.Random) -> Iterator[Arrival]:
        due, arrived = rng.random(), 0.0  # programs, up to the next one and up to the piece
        number = count()
        for piece in self._pieces():
            amount = piece.programs()
            while due < arrived + amount:
                at_s = piece.when(due - arrived)
                if next(number) == self.num_programs or at_s >= self.until_s:
                    return
                yield Arrival(at_s)
                due += 1
            arrived += amount

    def expected_programs(self) -> float:
        wanted = inf if self.num_programs is None else self.num_programs
        arriving = 0.0
        for piece in self._pieces():
            arriving += piece.programs(self.until_s)
            if arriving >= wanted or piece.end_s >= self.until_s:
                break
        return min(arriving, wanted)

    def last_arrival_s(self, rng: random.Random) -> float:
        return max((at_s for at_s, _ in self.arrivals(rng)), default=0.0)

    def _pieces(self) -> Iterator[_Piece]:
        start_s = 0.0
        for phase in self.phases[:-1]:
            yield from self._of(phase, start_s, start_s + phase.for_s)
            start_s += phase.for_s
        last = self.phases[-1]
        if last.to_multiple is not None:
            end_s = start_s + last.for_s
            yield from self._of(last, start_s, end_s)
            start_s, last = end_s, Phase(inf, last.to_multiple)
        yield from self._of(last, start_s, inf)

    def _of(self, phase: Phase, start_s: float, end_s: float) -> Iterator[_Piece]:
        rate = phase.multiple * self.programs_per_s
        if not phase.on_s:
            to_rate = rate
            if phase.to_multiple is not None:
                to_rate = phase.to_multiple * self.programs_per_s
            yield _Piece(start_s, end_s, rate, to_rate)
            return
        period_s = phase.on_s + phase.off_s
        for turn in count():
            on_s = start_s + turn * period_s
            if on_s >= end_s or (end_s == inf and not rate):
                return
            yield _Piece(on_s, min(on_s + phase.on_s, end_s), rate, rate)


def paced(load: Load, phases: tuple[Phase, ...], kind: str) -> PacedArrivals:
    """The arrivals of a client in these phases. Raises UsageError for what has no even gaps."""
    if load.programs_per_s == inf:
        raise UsageError(f"request_rate = inf: arrivals of kind {kind} come one after the other")
    if load.burstiness != 1:
        raise UsageError(f"burstiness = {load.burstiness:g}: gaps of kind {kind} are even")
    return PacedArrivals(load.programs_per_s, phases, load.num_programs, load.until_s)


def paced_multiple(
    load: Load,
    phases: tuple[Phase, ...],
    kind: str,
    rate_multiple: float,
    until_fraction: float | None,
) -> PacedArrivals:
    """The same of one who sends so many times as much, to the end.

    Raises UsageError for one who is to stop before: that can be said in phases.
    """
    if until_fraction is not None:
        raise UsageError(
            f"until_fraction = {until_fraction:g}: not with arrivals of kind {kind}; give the "
            "client arrivals of kind phases"
        )
    wanted = load.num_programs
    count = None if wanted is None else max(1, round(wanted * rate_multiple))
    rate = load.programs_per_s * rate_multiple
    return paced(load._replace(programs_per_s=rate, num_programs=count), phases, kind)
