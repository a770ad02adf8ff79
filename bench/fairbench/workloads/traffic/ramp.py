"""A ramp: the rate rises or falls linearly over the whole run."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated

from annotated_types import Ge

from fairbench.errors import UsageError
from fairbench.workloads.traffic.paced import Gaps, Plan, PlannedKind
from fairbench.workloads.traffic.pieces import Phase
from fairbench.workloads.traffic.source import Load


class Ramp(PlannedKind):
    """The kind ``ramp``."""

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
