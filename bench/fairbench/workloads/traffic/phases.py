"""Phases, each with a rate of its own: for behaviour that changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Len

from fairbench.workloads.traffic.paced import PacedArrivals, Phase, paced, paced_multiple
from fairbench.workloads.traffic.source import Load


class Phases:
    """The kind ``phases``: one after the other, the last one to the end."""

    @dataclass(frozen=True)
    class Params:
        """Tables with the keys of ``Phase``."""

        phases: Annotated[tuple[Phase, ...], Len(1)]

    def __init__(self, params: Params) -> None:
        self.params = params

    def usual(self, load: Load) -> PacedArrivals:
        return paced(load, self.params.phases, "phases")

    def misbehaving(
        self, load: Load, rate_multiple: float, until_fraction: float | None
    ) -> PacedArrivals:
        return paced_multiple(load, self.params.phases, "phases", rate_multiple, until_fraction)
