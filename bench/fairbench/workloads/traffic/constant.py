"""A constant rate: even gaps."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from fairbench.workloads.traffic.paced import PacedArrivals, Phase, paced, paced_multiple
from fairbench.workloads.traffic.source import Load


class Constant:
    """The kind ``constant``."""

    @dataclass(frozen=True)
    class Params:
        """None: the rate is the scenario's and the command line's."""

    def __init__(self, params: Params) -> None:
        self.params = params

    def usual(self, load: Load) -> PacedArrivals:
        return paced(load, (Phase(inf, 1.0),), "constant")

    def misbehaving(
        self, load: Load, rate_multiple: float, until_fraction: float | None
    ) -> PacedArrivals:
        phases = (Phase(inf, 1.0),)
        return paced_multiple(load, phases, "constant", rate_multiple, until_fraction)
