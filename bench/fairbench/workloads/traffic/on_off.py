"""On-off traffic: a constant rate for some time, then silence, repeatedly."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated

from annotated_types import Gt

from fairbench.workloads.traffic.paced import Gaps, Plan, PlannedKind
from fairbench.workloads.traffic.pieces import Phase


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
