"""On and off: even gaps for some time, then nothing for some time, and again."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated

from annotated_types import Gt

from fairbench.workloads.traffic.paced import PacedArrivals, Phase, paced, paced_multiple
from fairbench.workloads.traffic.source import Load


class OnOff:
    """The kind ``on-off``. The rate is that while it is on, with which it begins."""

    @dataclass(frozen=True)
    class Params:
        """Both in seconds."""

        on_s: Annotated[float, Gt(0)]
        off_s: Annotated[float, Gt(0)]

    def __init__(self, params: Params) -> None:
        self._phases = (Phase(inf, 1.0, on_s=params.on_s, off_s=params.off_s),)

    def usual(self, load: Load) -> PacedArrivals:
        return paced(load, self._phases, "on-off")

    def misbehaving(
        self, load: Load, rate_multiple: float, until_fraction: float | None
    ) -> PacedArrivals:
        return paced_multiple(load, self._phases, "on-off", rate_multiple, until_fraction)
