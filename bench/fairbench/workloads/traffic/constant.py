"""A constant rate with even gaps."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from fairbench.workloads.traffic.paced import Plan, PlannedKind
from fairbench.workloads.traffic.pieces import Phase


class Constant(PlannedKind):
    """The kind ``constant``."""

    @dataclass(frozen=True)
    class Params:
        """No parameters: the scenario and the command line set the rate."""

    def __init__(self, params: Params) -> None:
        super().__init__(Plan("constant", (Phase(inf, 1.0),)))
