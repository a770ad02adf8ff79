"""Phases with their own rates, for behaviour that changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Len

from fairbench.workloads.traffic.paced import Gaps, Plan, PlannedKind
from fairbench.workloads.traffic.pieces import Phase


class Phases(PlannedKind):
    """The kind ``phases``: one phase after the other; the last lasts to the end, or all repeat."""

    @dataclass(frozen=True)
    class Params:
        """Parameters: tables with the keys of ``Phase``; ``repeat`` starts again after the last."""

        phases: Annotated[tuple[Phase, ...], Len(1)]
        repeat: bool = False
        gaps: Gaps = "even"

    def __init__(self, params: Params) -> None:
        super().__init__(Plan("phases", params.phases, params.gaps, params.repeat))
