"""A constant rate: even gaps."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from fairbench.workloads.traffic.paced import Plan, PlannedKind
from fairbench.workloads.traffic.pieces import Phase


class Constant(PlannedKind):
    """The kind ``constant``."""

    @dataclass(frozen=True)
    class Params:
        """None: the rate is the scenario's and the command line's."""

    def __init__(self, params: Params) -> None:
        super().__init__(Plan("constant", (Phase(inf, 1.0),)))
