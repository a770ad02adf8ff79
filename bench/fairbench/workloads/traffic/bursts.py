"""Bursts: a steady rate, interrupted at intervals by a short, much higher rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from fairbench.workloads.traffic.paced import Gaps, Plan, PlannedKind
from fairbench.workloads.traffic.pieces import Phase


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
