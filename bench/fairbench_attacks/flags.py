"""The flags of ``fairbench attack``, and the objective by which attacks are ranked."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import inf
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, TypedDict

from fairbench.config.flags import RUN
from fairbench.config.parse_flags import Flag, flags_of

if TYPE_CHECKING:
    from fairbench_attacks.measure import AttackHarm


class Objective(StrEnum):
    """The quantity by which a search ranks the attacks that it tries."""

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


def value_of(harms: Sequence[AttackHarm], objective: str) -> float:
    """Return the value of a tried attack under the objective, as a mean over all seeds.

    The value is the attacker's gain, the victims' loss of service or cache hits, or the victims'
    P95 latency, each relative to the honest run. A P95 latency that is unknown under the attack
    counts as infinite. The loss of cache hits is 0 if the honest run has no cache hits.
    """
    if objective == Objective.GAIN:
        return fmean(one.gain for one in harms)
    if objective == Objective.LATENCY:
        return fmean(inf if one.p95 is None else one.p95 for one in harms)
    if objective == Objective.HITS:
        return 1 - fmean(1.0 if one.hits is None else one.hits for one in harms)
    return 1 - fmean(one.kept for one in harms)


class Optimiser(StrEnum):
    """The algorithm that chooses the next attacks to try."""

    RANDOM = "random"
    TPE = "tpe"


class AttackedFlags(TypedDict, total=False):
    """Flags of the experiment in which attacks are simulated."""

    scheduler: Annotated[str | None, RUN["scheduler"]]
    gateway: Annotated[str | None, RUN["gateway"]]
    saturation: Annotated[str | None, RUN["saturation"]]
    eviction: Annotated[str | None, RUN["eviction"]]
    scenario: Annotated[
        str | None,
        RUN["scenario"].but(
            "Scenario that gives load and parameters, without heavy clients.",
            default="none",
            metavar=None,
        ),
    ]
    dp: Annotated[int | None, RUN["dp"].but(default=2)]
    duration: Annotated[
        float | None,
        RUN["duration"].but("Seconds of arrivals.", default="the workload's, or 60 with --quick"),
    ]
    seed: Annotated[int | None, RUN["seed"].but("First seed.")]


class AttackFlags(AttackedFlags, total=False):
    """Flags of the experiment and flags of the search for attacks."""

    workload: Annotated[
        str | None, RUN["workload"].but("Workload of all clients.", default="judge")
    ]
    victims: Annotated[
        int | None, Flag("Number of other clients (the victims).", default=3, least=1)
    ]
    multiple: Annotated[
        float | None,
        Flag("Load of the attacker, as a multiple of the load of one victim.", default=4),
    ]
    budget: Annotated[
        float | None,
        Flag(
            "Limit on the attacker's tokens per hour; an output token counts as 2.",
            default="no limit",
        ),
    ]
    gpu_budget: Annotated[
        float | None,
        Flag(
            "Limit on the GPU seconds per hour that the attacker's requests may take.",
            default="no limit",
        ),
    ]
    objective: Annotated[
        Objective | None,
        Flag(
            "Goal by which attacks are ranked: more service for the attacker (gain), less service "
            "for the victims (harm), their P95 latency (latency), or their cache hits (hits).",
            default=Objective.HARM,
        ),
    ]
    trials: Annotated[
        int | None, Flag("Number of attacks to try.", default="64, or 16 with --quick", least=1)
    ]
    cpu_hours: Annotated[
        float | None,
        Flag("Processor hours after which the search ends, instead of --trials.", default="none"),
    ]
    optimiser: Annotated[
        Optimiser | None,
        Flag(
            "Search algorithm after the first 24 attacks; tpe needs the extra `attack`.",
            default=Optimiser.RANDOM,
        ),
    ]
    confirm: Annotated[
        int | None,
        Flag(
            "Number of other seeds on which the worst attacks are confirmed.",
            default="5, or 3 with --quick",
            least=1,
        ),
    ]


ATTACKED, ATTACK = flags_of(AttackedFlags), flags_of(AttackFlags)
