"""Kinds of traffic whose rate follows a plan: constant, on and off, ramps, phases, bursts, days."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, inf, pi
from typing import Annotated

from annotated_types import Ge, Gt, Le, Len

from fairbench.errors import UsageError
from fairbench.workloads.traffic.paced import Gaps, Phase, Plan, PlannedKind
from fairbench.workloads.traffic.source import Load

PIECES = 24  # straight ones in a period; their mean is exactly that of the wave


class Constant(PlannedKind):
    """The kind ``constant``: a constant rate with even gaps."""

    @dataclass(frozen=True)
    class Params:
        """No parameters: the scenario and the command line set the rate."""

    def __init__(self, params: Params) -> None:
        super().__init__(Plan("constant", (Phase(inf, 1.0),)))


class OnOff(PlannedKind):
    """The kind ``on-off``. The rate applies while it is on, which comes first."""

    @dataclass(frozen=True)
    class Params:
        """Times in seconds."""

        on_s: Annotated[float, Gt(0)]
        off_s: Annotated[float, Gt(0)]
        gaps: Gaps = "even"

    def __init__(self, params: Params) -> None:
        phase = Phase(inf, 1.0, on_s=params.on_s, off_s=params.off_s)
        super().__init__(Plan("on-off", (phase,), params.gaps))


class Ramp(PlannedKind):
    """The kind ``ramp``: the rate rises or falls linearly over the whole run."""

    @dataclass(frozen=True)
    class Params:
        """Multiples of the client's rate at the beginning and at the end."""

        from_multiple: Annotated[float, Ge(0)]
        to_multiple: Annotated[float, Ge(0)]
        gaps: Gaps = "even"

    def __init__(self, params: Params) -> None:
        self.params = params

    def plan(self, load: Load) -> Plan:
        if load.until_s == inf:
            raise UsageError(
                "num_programs: not supported for arrivals of kind ramp; give duration instead"
            )
        params = self.params
        phase = Phase(load.until_s, params.from_multiple, params.to_multiple)
        return Plan("ramp", (phase,), params.gaps)


class Phases(PlannedKind):
    """The kind ``phases``: one phase after the other; the last lasts to the end, or all repeat."""

    @dataclass(frozen=True)
    class Params:
        """Parameters: tables with the keys of ``Phase``; ``repeat`` starts again after the last."""

        phases: Annotated[tuple[Phase, ...], Len(1)]
        repeat: bool = False
        gaps: Gaps = "even"

    def __init__(self, params: Params) -> None:
        super().__init__(Plan("phases", params.phases, params.gaps, params.repeat))


class Bursts(PlannedKind):
    """The kind ``bursts``. The client's rate is the rate between bursts, which comes first."""

    @dataclass(frozen=True)
    class Params:
        """A burst of ``for_s`` seconds ends each ``every_s``, at ``multiple`` times the rate."""

        every_s: Annotated[float, Gt(0)]
        for_s: Annotated[float, Gt(0)]
        multiple: Annotated[float, Ge(0)]
        gaps: Gaps = "gamma"

        def __post_init__(self) -> None:
            if self.for_s >= self.every_s:
                raise ValueError(
                    f"for_s = {self.for_s:g}: must be below every_s = {self.every_s:g}"
                )

    def __init__(self, params: Params) -> None:
        steady = Phase(params.every_s - params.for_s, 1.0)
        burst = Phase(params.for_s, params.multiple)
        super().__init__(Plan("bursts", (steady, burst), params.gaps, repeat=True))


class Diurnal(PlannedKind):
    """The kind ``diurnal``. The client's rate is the mean over a period.

    The rate is 1 + ``swing`` times its mean at ``peak_s``, and 1 - ``swing`` half a period later: a
    cosine, drawn as a line from hour to hour (a 24th of the period).
    """

    @dataclass(frozen=True)
    class Params:
        """Times in seconds; the run begins at 0 of a period."""

        swing: Annotated[float, Ge(0), Le(1)]
        period_s: Annotated[float, Gt(0)] = 86400.0
        peak_s: Annotated[float, Ge(0)] = 0.0
        gaps: Gaps = "gamma"

    def __init__(self, params: Params) -> None:
        hour_s = params.period_s / PIECES
        multiples = [_multiple(params, hour * hour_s) for hour in range(PIECES)]
        after = [*multiples[1:], multiples[0]]
        phases = tuple(Phase(hour_s, now, then) for now, then in zip(multiples, after, strict=True))
        super().__init__(Plan("diurnal", phases, params.gaps, repeat=True))


def _multiple(params: Diurnal.Params, at_s: float) -> float:
    return max(0.0, 1 + params.swing * cos(2 * pi * (at_s - params.peak_s) / params.period_s))
