"""What an attacker is after, as a number of each trial."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import inf
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairbench.attack.measure import Harm


class Objective(StrEnum):
    """What the worst attack is the worst by."""

    GAIN = "gain"
    HARM = "harm"
    LATENCY = "latency"


LABELS = {
    Objective.GAIN: "gain",
    Objective.HARM: "loss of the victims (1 - kept)",
    Objective.LATENCY: "victims' P95 (1: as beside the honest twin)",
}


def value_of(harms: Sequence[Harm], objective: str) -> float:
    """How good a trial is for the attacker, the mean over its seeds.

    Its gain, the victims' loss of service, or how many times as long their P95 is as beside the
    twin: infinite if what was refused leaves them none.
    """
    if objective == Objective.GAIN:
        return fmean(one.gain for one in harms)
    if objective == Objective.LATENCY:
        return fmean(inf if one.p95 is None else one.p95 for one in harms)
    return 1 - fmean(one.kept for one in harms)
