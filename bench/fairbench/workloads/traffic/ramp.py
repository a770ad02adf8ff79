"""A ramp: the rate rises, or falls, evenly over the whole run."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated

from annotated_types import Ge

from fairbench.errors import UsageError
from fairbench.workloads.traffic.paced import PacedArrivals, Phase, paced, paced_multiple
from fairbench.workloads.traffic.source import Load


class Ramp:
    """The kind ``ramp``."""

    @dataclass(frozen=True)
    class Params:
        """Multiples of the client's rate at the beginning and at the end."""

        from_multiple: Annotated[float, Ge(0)]
        to_multiple: Annotated[float, Ge(0)]

    def __init__(self, params: Params) -> None:
        self.params = params

    def _phases(self, load: Load) -> tuple[Phase, ...]:
        if load.until_s == inf:
            raise UsageError("num_programs: arrivals of kind ramp need a duration instead")
        return (Phase(load.until_s, self.params.from_multiple, self.params.to_multiple),)

    def usual(self, load: Load) -> PacedArrivals:
        return paced(load, self._phases(load), "ramp")

    def misbehaving(
        self, load: Load, rate_multiple: float, until_fraction: float | None
    ) -> PacedArrivals:
        return paced_multiple(load, self._phases(load), "ramp", rate_multiple, until_fraction)
