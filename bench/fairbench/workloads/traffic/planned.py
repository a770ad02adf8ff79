"""Kinds of traffic whose rate follows a plan: constant, on and off, ramps, phases, bursts, days."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, inf, pi
from typing import Annotated

from annotated_types import Ge, Gt, Le, Len

from fairbench.errors import UsageError
from fairbench.workloads.traffic.paced import Gaps, Phase, PlannedKind
from fairbench.workloads.traffic.source import Load

PIECES = 24  # straight lines per period; their mean equals the mean of the wave


class Constant(PlannedKind):
    """The kind ``constant``: a constant rate with even gaps."""

    kind = "constant"

    @dataclass(frozen=True)
    class Params:
        """No parameters: the scenario and the command line set the rate."""

    def phases(self, load: Load) -> tuple[Phase, ...]:
        return (Phase(inf, 1.0),)


class OnOff(PlannedKind):
    """The kind ``on-off``. The rate applies in the on phase, which comes first."""

    kind = "on-off"

    @dataclass(frozen=True)
    class Params:
        """Times in seconds."""

        on_s: Annotated[float, Gt(0)]
        off_s: Annotated[float, Gt(0)]
        gaps: Gaps = "even"

    def phases(self, load: Load) -> tuple[Phase, ...]:
        return (Phase(inf, 1.0, on_s=self.params.on_s, off_s=self.params.off_s),)


class Ramp(PlannedKind):
    """The kind ``ramp``: the rate rises or falls linearly over the whole run."""

    kind = "ramp"

    @dataclass(frozen=True)
    class Params:
        """Multiples of the client's rate at the beginning and at the end."""

        from_multiple: Annotated[float, Ge(0)]
        to_multiple: Annotated[float, Ge(0)]
        gaps: Gaps = "even"

    def phases(self, load: Load) -> tuple[Phase, ...]:
        if load.until_s == inf:
            raise UsageError(
                "num_programs: not supported for arrivals of kind ramp; give duration instead"
            )
        return (Phase(load.until_s, self.params.from_multiple, self.params.to_multiple),)


class Phases(PlannedKind):
    """The kind ``phases``: one phase after the other; the last lasts to the end, or all repeat."""

    kind = "phases"

    @dataclass(frozen=True)
    class Params:
        """Parameters: tables with the keys of ``Phase``; ``repeat`` starts again after the last."""

        phases: Annotated[tuple[Phase, ...], Len(1)]
        repeat: bool = False
        gaps: Gaps = "even"

    def phases(self, load: Load) -> tuple[Phase, ...]:
        phases: tuple[Phase, ...] = self.params.phases
        return phases


class Bursts(PlannedKind):
    """The kind ``bursts``.

    The client's rate is the rate between bursts; each period starts without a burst.
    """

    kind = "bursts"
    repeat = True

    @dataclass(frozen=True)
    class Params:
        """Parameters: each ``every_s``, a burst of ``for_s`` seconds at ``multiple`` x the rate."""

        every_s: Annotated[float, Gt(0)]
        for_s: Annotated[float, Gt(0)]
        multiple: Annotated[float, Ge(0)]
        gaps: Gaps = "gamma"

        def __post_init__(self) -> None:
            if self.for_s >= self.every_s:
                raise ValueError(
                    f"for_s = {self.for_s:g}: must be below every_s = {self.every_s:g}"
                )

    def phases(self, load: Load) -> tuple[Phase, ...]:
        steady = Phase(self.params.every_s - self.params.for_s, 1.0)
        return steady, Phase(self.params.for_s, self.params.multiple)


class Diurnal(PlannedKind):
    """The kind ``diurnal``. The client's rate is the mean over a period.

    The rate is 1 + ``swing`` times its mean at ``peak_s``, and 1 - ``swing`` times half a period
    later. The curve is a cosine, with straight lines from hour to hour (a 24th of the period).
    """

    kind = "diurnal"
    repeat = True

    @dataclass(frozen=True)
    class Params:
        """Times in seconds; the run begins at time 0 of a period."""

        swing: Annotated[float, Ge(0), Le(1)]
        period_s: Annotated[float, Gt(0)] = 86400.0
        peak_s: Annotated[float, Ge(0)] = 0.0
        gaps: Gaps = "gamma"

    def phases(self, load: Load) -> tuple[Phase, ...]:
        hour_s = self.params.period_s / PIECES
        multiples = [self._multiple(hour * hour_s) for hour in range(PIECES)]
        after = [*multiples[1:], multiples[0]]
        return tuple(Phase(hour_s, now, then) for now, then in zip(multiples, after, strict=True))

    def _multiple(self, at_s: float) -> float:
        angle: float = 2 * pi * (at_s - self.params.peak_s) / self.params.period_s
        return max(0.0, 1.0 + float(self.params.swing) * cos(angle))
