"""Arrivals whose rate changes as planned: the base of all traffic with phases.

Gaps are even, as in [VTC]'s synthetic experiments ([VTC-artifact], fair_bench/trace.py), or drawn
as those of kind ``gamma``: a gap of mean 1 passes as fast as the rate says.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count, repeat
from math import inf
from typing import Literal

from fairbench.errors import UsageError
from fairbench.workloads.traffic.gamma import gamma_gaps
from fairbench.workloads.traffic.pieces import Phase, Piece, pieces
from fairbench.workloads.traffic.source import Arrival, Load

Gaps = Literal["even", "gamma"]
"""How far programs are apart at a rate of 1: always 1, or Gamma with the burstiness asked for."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The course of a client's rate and its gaps; error messages use ``kind``."""

    kind: str
    phases: tuple[Phase, ...]
    gaps: Gaps = "even"
    repeat: bool = False


@dataclass(frozen=True, slots=True)
class PacedArrivals:
    """A client's arrivals: an ``ArrivalSource``. Even gaps begin at a random phase.

    ``burstiness`` None means even gaps.
    """

    programs_per_s: float
    phases: tuple[Phase, ...]
    num_programs: int | None = None
    until_s: float = inf
    repeat: bool = False
    burstiness: float | None = None

    @property
    def timed(self) -> bool:
        return False

    def arrivals(self, rng: random.Random) -> Iterator[Arrival]:
        gaps = self._gaps(rng)
        due, arrived = next(gaps), 0.0  # programs, up to the next one and up to the piece
        number = count()
        for piece in self._pieces():
            if piece.start_s >= self.until_s:
                return
            amount = piece.programs()
            while due < arrived + amount:
                at_s = piece.when(due - arrived)
                if next(number) == self.num_programs or at_s >= self.until_s:
                    return
                yield Arrival(at_s)
                due += next(gaps)
            arrived += amount

    def expected_programs(self, before_s: float = inf) -> float:
        wanted = inf if self.num_programs is None else self.num_programs
        until_s = min(before_s, self.until_s)
        arriving = 0.0
        for piece in self._pieces():
            arriving += piece.programs(until_s)
            if arriving >= wanted or piece.end_s >= until_s:
                break
        return min(arriving, wanted)

    def last_arrival_s(self, rng: random.Random) -> float:
        return max((at_s for at_s, _ in self.arrivals(rng)), default=0.0)

    def _gaps(self, rng: random.Random) -> Iterator[float]:
        if self.burstiness is None:
            return chain((rng.random(),), repeat(1))
        return gamma_gaps(rng, self.burstiness)

    def _pieces(self) -> Iterator[Piece]:
        return pieces(self.phases, self.programs_per_s, repeat=self.repeat)


def paced(load: Load, plan: Plan) -> PacedArrivals:
    """Return a client's arrivals by a plan. Raises UsageError for an impossible plan."""
    if load.programs_per_s == inf:
        raise UsageError(f"request_rate = inf: must be finite for arrivals of kind {plan.kind}")
    if plan.gaps == "even" and load.burstiness != 1:
        raise UsageError(
            f"burstiness = {load.burstiness:g}: not supported for arrivals of kind "
            f"{plan.kind}, which are evenly spaced; leave burstiness out"
        )
    return PacedArrivals(
        load.programs_per_s,
        plan.phases,
        load.num_programs,
        load.until_s,
        plan.repeat,
        load.burstiness if plan.gaps == "gamma" else None,
    )


def paced_multiple(
    load: Load, plan: Plan, rate_multiple: float, until_fraction: float | None
) -> PacedArrivals:
    """Return the arrivals of a heavy client that sends ``rate_multiple`` times the load.

    Raises UsageError for an earlier end, which phases can express.
    """
    if until_fraction is not None:
        raise UsageError(
            f"misbehaving client {load.client}: until_fraction = {until_fraction:g}: not "
            f"supported for arrivals of kind {plan.kind}; give the client arrivals of "
            "kind phases"
        )
    wanted = load.num_programs
    count = None if wanted is None else max(1, round(wanted * rate_multiple))
    rate = load.programs_per_s * rate_multiple
    return paced(load._replace(programs_per_s=rate, num_programs=count), plan)


class PlannedKind:
    """A ``TrafficKind`` with one plan for all loads, made from the ``Params`` of subclasses."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def plan(self, load: Load) -> Plan:
        """Return the plan of a client with this load."""
        return self._plan

    def usual(self, load: Load) -> PacedArrivals:
        return paced(load, self.plan(load))

    def misbehaving(
        self, load: Load, rate_multiple: float, until_fraction: float | None
    ) -> PacedArrivals:
        return paced_multiple(load, self.plan(load), rate_multiple, until_fraction)
