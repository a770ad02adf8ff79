"""The flags of ``fairbench attack``: the experiment that is attacked, and what is searched."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, TypedDict

from fairbench.attack.objective import Objective
from fairbench.config.flags.flag import OTHER, Flag, flags_of


class Optimiser(StrEnum):
    """The algorithm that chooses the next attacks."""

    RANDOM = "random"
    TPE = "tpe"


def _flag(help: str, default: str = "", **rest: Any) -> Flag:
    """Declare a flag of a command whose help has no panels."""
    return Flag(help, OTHER, default, **rest)


class AttackedFlags(TypedDict, total=False):
    """Flags of the experiment that is attacked."""

    scheduler: Annotated[str | None, _flag("Pair of router and local scheduler.", "d2lpm")]
    gateway: Annotated[str | None, _flag("Queue before the router.", "none", metavar="POLICY")]
    saturation: Annotated[
        str | None,
        _flag("Saturation detector: when --gateway releases requests.", metavar="DETECTOR"),
    ]
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
    victims: Annotated[int | None, _flag("Clients beside it.", "3", least=1)]
    multiple: Annotated[
        float | None, _flag("The attacker sends so many times as much as one.", "4")
    ]
    budget: Annotated[
        float | None, _flag("Tokens that it may ask for in an hour, 2 for one of output.", "any")
    ]
    gpu_budget: Annotated[
        float | None, _flag("Seconds of GPUs that its requests may take in an hour.", "any")
    ]
    objective: Annotated[
        Objective | None, _flag("Its useful service, or the victims' loss of it or P95.", "harm")
    ]
    trials: Annotated[int | None, _flag("Behaviours to try.", "64, or 16 with --quick", least=1)]
    cpu_hours: Annotated[
        float | None, _flag("Search until simulations have taken so many.", "for --trials")
    ]
    optimiser: Annotated[
        Optimiser | None, _flag("After the first 24; tpe needs the extra `attack`.", "random")
    ]
    confirm: Annotated[
        int | None, _flag("Other seeds of the worst ones.", "5, or 3 with --quick", least=1)
    ]


ATTACKED = flags_of(AttackedFlags)
