"""The attacker's goal, as a number for each trial."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import inf
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairbench.attack.measure import Harm


class Objective(StrEnum):
    """The quantity by which attacks are ranked."""

    GAIN = "gain"
    HARM = "harm"
    LATENCY = "latency"
    HITS = "hits"


LABELS = {
    Objective.GAIN: "gain",
    Objective.HARM: "loss of the victims (1 - kept)",
    Objective.HITS: "loss of the victims' cache hits (1 - hits)",
    Objective.LATENCY: "victims' P95 relative to the honest run",
}


def value_of(harms: Sequence[Harm], objective: str) -> float:
    """Return a trial's value to the attacker, averaged over its seeds.

    The value is the attacker's gain, the victims' loss of service or of cache hits, or the ratio of
    the victims' P95 to the honest twin's. The ratio is infinite if the victims have no P95 because
    their requests were refused. Victims without hits have none to lose.
    """
    if objective == Objective.GAIN:
        return fmean(one.gain for one in harms)
    if objective == Objective.LATENCY:
        return fmean(inf if one.p95 is None else one.p95 for one in harms)
    if objective == Objective.HITS:
        return 1 - fmean(1.0 if one.hits is None else one.hits for one in harms)
    return 1 - fmean(one.kept for one in harms)
