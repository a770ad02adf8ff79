"""Arrivals at a planned rate, such as a constant rate, a ramp, bursts or a daily wave.

Gaps between programs are even (used in the synthetic experiments of [VTC]: [VTC-artifact],
fair_bench/trace.py) or random (Gamma-distributed, like the gaps of kind ``gamma``). Gaps are drawn
with mean 1 and divided by the present rate.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count, cycle, repeat
from math import cos, inf, pi, sqrt
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from annotated_types import Ge, Gt, Le, Len

from fairbench.errors import UsageError
from fairbench.workloads.traffic.arrivals import (
    Arrival,
    ArrivalSource,
    TrafficKind,
    TrafficLoad,
    gamma_gaps,
)


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of ``for_s`` seconds at ``multiple`` times the client's rate.

    If ``to_multiple`` is given, the rate changes linearly to ``to_multiple`` times the client's
    rate. If ``on_s`` is above 0, ``on_s`` seconds of traffic and ``off_s`` seconds of silence
    alternate. After ``for_s`` seconds, the last phase continues without end at its final rate.
    """

    for_s: Annotated[float, Gt(0)]
    multiple: Annotated[float, Ge(0)]
    to_multiple: Annotated[float, Ge(0)] | None = None
    on_s: Annotated[float, Ge(0)] = 0.0
    off_s: Annotated[float, Ge(0)] = 0.0

    def __post_init__(self) -> None:
        if bool(self.on_s) != bool(self.off_s):
            raise ValueError(
                f"on_s = {self.on_s:g}: on_s and off_s must both be above 0, or both be left out"
            )
        if self.on_s and self.to_multiple is not None:
            raise ValueError("to_multiple cannot be combined with on_s and off_s")


class Piece(NamedTuple):
    """An interval in which the rate (programs/s) changes linearly from ``rate`` to ``to_rate``."""

    start_s: float
    end_s: float
    rate: float
    to_rate: float

    @property
    def slope(self) -> float:
        return (
            0.0 if self.end_s == inf else (self.to_rate - self.rate) / (self.end_s - self.start_s)
        )

    def programs_until(self, until_s: float = inf) -> float:
        """Return the number of programs that arrive in this interval before ``until_s``."""
        length_s = max(0.0, min(self.end_s, until_s) - self.start_s)
        if self.rate == self.to_rate:
            return self.rate * length_s if self.rate else 0.0
        return (self.rate + self.slope * length_s / 2) * length_s

    def when(self, programs: float) -> float:
        """Return the time (s) at which ``programs`` programs have arrived since ``start_s``."""
        root = sqrt(max(0.0, self.rate**2 + 2 * self.slope * programs))
        return self.start_s + (2 * programs / (self.rate + root) if programs else 0.0)


def pieces(phases: tuple[Phase, ...], programs_per_s: float, *, repeat: bool) -> Iterator[Piece]:
    """Yield the linear pieces of a client's rate in order of time, without pieces of rate 0.

    With ``repeat``, the phases start again after the last phase; otherwise, the last phase
    continues without end. The iterator ends only if no further program arrives.
    """
    start_s = 0.0
    active = any(phase.multiple or phase.to_multiple for phase in phases)
    repeated = cycle(phases) if active else phases
    for phase in repeated if repeat else phases[:-1]:
        yield from _pieces_of_phase(phase, programs_per_s, start_s, start_s + phase.for_s)
        start_s += phase.for_s
    last = phases[-1]
    if last.to_multiple is not None:
        end_s = start_s + last.for_s
        yield from _pieces_of_phase(last, programs_per_s, start_s, end_s)
        start_s, last = end_s, Phase(inf, last.to_multiple)
    yield from _pieces_of_phase(last, programs_per_s, start_s, inf)


def _pieces_of_phase(
    phase: Phase, programs_per_s: float, start_s: float, end_s: float
) -> Iterator[Piece]:
    rate = phase.multiple * programs_per_s
    if not phase.on_s:
        to_rate = rate
        if phase.to_multiple is not None:
            to_rate = phase.to_multiple * programs_per_s
        yield Piece(start_s, end_s, rate, to_rate)
        return
    period_s = phase.on_s + phase.off_s
    for turn in count():
        on_s = start_s + turn * period_s
        if on_s >= end_s or (end_s == inf and not rate):
            return
        yield Piece(on_s, min(on_s + phase.on_s, end_s), rate, rate)


Gaps = Literal["even", "gamma"]
"""The gaps between programs: all equal, or Gamma-distributed with the given burstiness."""


@dataclass(frozen=True, slots=True)
class PacedArrivals(ArrivalSource):
    """The arrivals of a client whose rate has phases.

    If ``burstiness`` is None, gaps are even, and the first gap begins at a random time.
    """

    programs_per_s: float
    phases: tuple[Phase, ...]
    num_programs: int | None = None
    until_s: float = inf
    repeat: bool = False
    burstiness: float | None = None

    def arrivals(self, rng: random.Random) -> Iterator[Arrival]:
        gaps: Iterator[float]
        if self.burstiness is None:
            gaps = chain((rng.random(),), repeat(1))
        else:
            gaps = gamma_gaps(rng, self.burstiness)
        # ``arrived`` programs arrive before ``piece`` begins. The next program arrives once the
        # number of expected arrivals reaches ``due``.
        due, arrived = next(gaps), 0.0
        number = count()
        for piece in self._pieces():
            if piece.start_s >= self.until_s:
                return
            amount = piece.programs_until()
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
            arriving += piece.programs_until(until_s)
            if arriving >= wanted or piece.end_s >= until_s:
                break
        return min(arriving, wanted)

    def _pieces(self) -> Iterator[Piece]:
        return pieces(self.phases, self.programs_per_s, repeat=self.repeat)


class PlannedKind(TrafficKind):
    """A kind of traffic whose rate has phases; messages name the traffic by ``kind``."""

    kind: ClassVar[str]
    repeat: ClassVar[bool] = False

    def __init__(self, params: Any) -> None:
        self.params = params

    @abstractmethod
    def phases(self, load: TrafficLoad) -> tuple[Phase, ...]:
        """Return the phases of a client's rate; the last phase continues without end."""

    def usual(self, load: TrafficLoad) -> PacedArrivals:
        of = f"arrivals of kind {self.kind}"
        if load.programs_per_s == inf:
            raise UsageError(f"request_rate = inf: must be finite for {of}")
        gaps = getattr(self.params, "gaps", "even")
        if gaps == "even":
            load.check_plain(f"{of}, which are evenly spaced")
        repeat = self.repeat or getattr(self.params, "repeat", False)
        return PacedArrivals(
            *(load.programs_per_s, self.phases(load), load.num_programs, load.until_s, repeat),
            load.burstiness if gaps == "gamma" else None,
        )

    def misbehaving(
        self, load: TrafficLoad, rate_multiple: float, until_fraction: float | None
    ) -> PacedArrivals:
        load.check_whole(until_fraction, self.kind, "give the client arrivals of kind phases")
        wanted = load.num_programs
        count = None if wanted is None else max(1, round(wanted * rate_multiple))
        rate = load.programs_per_s * rate_multiple
        return self.usual(load._replace(programs_per_s=rate, num_programs=count))


PIECES = 24  # A cosine wave is approximated by this many straight lines with the same mean.


class Constant(PlannedKind):
    """The kind ``constant``: a constant rate with even gaps."""

    kind = "constant"

    @dataclass(frozen=True)
    class Params:
        """The kind ``constant`` has no parameters; the scenario or a flag sets the rate."""

    def phases(self, load: TrafficLoad) -> tuple[Phase, ...]:
        return (Phase(inf, 1.0),)


class OnOff(PlannedKind):
    """The kind ``on-off``: traffic at the client's rate alternates with silence."""

    kind = "on-off"

    @dataclass(frozen=True)
    class Params:
        """The lengths of the phases in seconds, and the kind of gaps between programs."""

        on_s: Annotated[float, Gt(0)]
        off_s: Annotated[float, Gt(0)]
        gaps: Gaps = "even"

    def phases(self, load: TrafficLoad) -> tuple[Phase, ...]:
        return (Phase(inf, 1.0, on_s=self.params.on_s, off_s=self.params.off_s),)


class Ramp(PlannedKind):
    """The kind ``ramp``: the rate rises or falls linearly over the whole run."""

    kind = "ramp"

    @dataclass(frozen=True)
    class Params:
        """Factors that multiply the client's rate at the beginning and at the end of the run."""

        from_multiple: Annotated[float, Ge(0)]
        to_multiple: Annotated[float, Ge(0)]
        gaps: Gaps = "even"

    def phases(self, load: TrafficLoad) -> tuple[Phase, ...]:
        if load.until_s == inf:
            raise UsageError(
                "num_programs: not supported for arrivals of kind ramp; give duration instead"
            )
        return (Phase(load.until_s, self.params.from_multiple, self.params.to_multiple),)


class Phases(PlannedKind):
    """Arrivals of kind ``phases``: the phases that the workload file lists, in order.

    The last phase continues to the end of the run, or all phases repeat.
    """

    kind = "phases"

    @dataclass(frozen=True)
    class Params:
        """The phases, each with the keys of ``Phase``; with ``repeat``, all phases repeat."""

        phases: Annotated[tuple[Phase, ...], Len(1)]
        repeat: bool = False
        gaps: Gaps = "even"

    def phases(self, load: TrafficLoad) -> tuple[Phase, ...]:
        phases: tuple[Phase, ...] = self.params.phases
        return phases


class Bursts(PlannedKind):
    """The kind ``bursts``: bursts at regular times.

    Between bursts, the client has its usual rate. Each period of ``every_s`` seconds starts at the
    usual rate and ends with a burst.
    """

    kind = "bursts"
    repeat = True

    @dataclass(frozen=True)
    class Params:
        """Bursts of ``for_s`` seconds at ``multiple`` times the usual rate, every ``every_s`` s."""

        every_s: Annotated[float, Gt(0)]
        for_s: Annotated[float, Gt(0)]
        multiple: Annotated[float, Ge(0)]
        gaps: Gaps = "gamma"

        def __post_init__(self) -> None:
            if self.for_s >= self.every_s:
                raise ValueError(
                    f"for_s = {self.for_s:g}: must be below every_s = {self.every_s:g}"
                )

    def phases(self, load: TrafficLoad) -> tuple[Phase, ...]:
        steady = Phase(self.params.every_s - self.params.for_s, 1.0)
        return steady, Phase(self.params.for_s, self.params.multiple)


class Diurnal(PlannedKind):
    """The kind ``diurnal``: a daily wave; the mean over a period is the client's rate.

    At ``peak_s``, the rate is (1 + ``swing``) x mean; half a period later, the rate is (1 -
    ``swing``) x mean. The rate follows a cosine, which is approximated by 24 straight lines.
    """

    kind = "diurnal"
    repeat = True

    @dataclass(frozen=True)
    class Params:
        """All times are in seconds. At time 0 of a run, the first period of ``period_s`` begins."""

        swing: Annotated[float, Ge(0), Le(1)]
        period_s: Annotated[float, Gt(0)] = 86400.0
        peak_s: Annotated[float, Ge(0)] = 0.0
        gaps: Gaps = "gamma"

    def phases(self, load: TrafficLoad) -> tuple[Phase, ...]:
        hour_s = self.params.period_s / PIECES
        times_s = [hour * hour_s - self.params.peak_s for hour in range(PIECES)]
        angles = [2 * pi * at_s / self.params.period_s for at_s in times_s]
        multiples = [max(0.0, 1.0 + float(self.params.swing) * cos(angle)) for angle in angles]
        after = [*multiples[1:], multiples[0]]
        return tuple(Phase(hour_s, now, then) for now, then in zip(multiples, after, strict=True))
