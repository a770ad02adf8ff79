"""Day and night: a rate that oscillates around its mean."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Annotated

from annotated_types import Ge, Gt, Le

from fairbench.workloads.traffic.paced import Gaps, Plan, PlannedKind
from fairbench.workloads.traffic.pieces import Phase

PIECES = 24  # straight ones in a period; their mean is exactly that of the wave


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
