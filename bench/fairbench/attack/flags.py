"""The flags of ``fairbench attack``, and the objective by which attacks are ranked."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import inf
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from fairbench.config.flags.flag import OTHER, Flag, flags_of
from fairbench.config.flags.run import RUN

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


class Optimiser(StrEnum):
    """The algorithm that chooses the next attacks."""

    RANDOM = "random"
    TPE = "tpe"


def _flag(help: str, default: str = "", **rest: Any) -> Flag:
    return Flag(help, OTHER, default, **rest)


class AttackedFlags(TypedDict, total=False):
    """Flags of the experiment that is attacked."""

    scheduler: Annotated[str | None, RUN["scheduler"]]
    gateway: Annotated[str | None, RUN["gateway"]]
    saturation: Annotated[str | None, RUN["saturation"]]
    eviction: Annotated[str | None, RUN["eviction"]]
    scenario: Annotated[
        str | None, _flag("Scenario that gives load and parameters, without heavy clients.", "none")
    ]
    dp: Annotated[int | None, _flag("Replicas of the model.", "2")]
    duration: Annotated[
        float | None, _flag("Seconds of arrivals.", "the workload's, or 60 with --quick")
    ]
    seed: Annotated[int | None, _flag("First seed.", "0")]


class AttackFlags(AttackedFlags, total=False):
    """Flags of the experiment and of the search."""

    workload: Annotated[
        str | None, _flag("Workload of all clients.", "judge", metavar="NAME|FILE.toml")
    ]
    victims: Annotated[int | None, _flag("Number of other clients (the victims).", "3", least=1)]
    multiple: Annotated[
        float | None, _flag("Load of the attacker, as a multiple of the load of one victim.", "4")
    ]
    budget: Annotated[
        float | None,
        _flag("Limit on the attacker's tokens per hour; an output token counts as 2.", "no limit"),
    ]
    gpu_budget: Annotated[
        float | None,
        _flag(
            "Limit on the GPU seconds per hour that the attacker's requests may take.", "no limit"
        ),
    ]
    objective: Annotated[
        Objective | None,
        _flag(
            "Goal by which attacks are ranked: more service for the attacker (gain), less service "
            "for the victims (harm), their P95 latency (latency), or their cache hits (hits).",
            "harm",
        ),
    ]
    trials: Annotated[
        int | None, _flag("Number of attacks to try.", "64, or 16 with --quick", least=1)
    ]
    cpu_hours: Annotated[
        float | None,
        _flag("Processor hours after which the search ends, instead of --trials.", "none"),
    ]
    optimiser: Annotated[
        Optimiser | None,
        _flag(
            "Search algorithm after the first 24 attacks; tpe needs the extra `attack`.", "random"
        ),
    ]
    confirm: Annotated[
        int | None,
        _flag(
            "Number of other seeds on which the worst attacks are confirmed.",
            "5, or 3 with --quick",
            least=1,
        ),
    ]


ATTACKED = flags_of(AttackedFlags)
