"""The flags of ``sweep``: axes of its grid, and what all its points share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fairbench.config.flags.experiment import EveryFlags, SeedFlags, SetupFlags
from fairbench.config.flags.flag import (
    CLUSTER,
    COMMON,
    LOAD,
    SCHEDULER,
    SERVERS,
    SIM,
    STARTED,
    WORKLOAD,
    Flag,
    flags_of,
    values_of,
)


def _axis(help: str, panel: str, key: str, read: Callable[[str], Any] = str, **rest: Any) -> Flag:
    """Declare a flag of several values, each of which is run."""
    return Flag(help, panel, key=key, read=values_of(read), axis=True, **{"metavar": "A,B"} | rest)


class SweepFlags(SetupFlags, EveryFlags, SeedFlags, total=False):
    """Flags of ``fairbench sweep``; its ``--help`` describes them."""

    schedulers: Annotated[
        Sequence[str] | None,
        _axis("Schedulers to compare, see `list schedulers`.", COMMON, "scheduler"),
    ]
    workloads: Annotated[
        Sequence[str] | None, _axis("Workloads, by name or path.", COMMON, "workload")
    ]
    scenarios: Annotated[
        Sequence[str] | None, _axis("Scenarios: none, s1, s2.", COMMON, "scenario")
    ]
    dp: Annotated[
        int | Sequence[int] | None, _axis("Numbers of replicas.", COMMON, "dp", int, metavar="1,2")
    ]
    prefill: Annotated[
        int | Sequence[int] | None,
        _axis(
            "Numbers of replicas that only compute prompts; needs --decode instead of --dp.",
            COMMON,
            "prefill",
            int,
            metavar="1,2",
        ),
    ]
    decode: Annotated[
        int | Sequence[int] | None,
        _axis(
            "Numbers of replicas that generate the answers of --prefill.",
            COMMON,
            "decode",
            int,
            metavar="1,2",
        ),
    ]
    evictions: Annotated[
        Sequence[str] | None,
        _axis("Eviction policies of KV memory, see `list evictions`.", CLUSTER, "eviction"),
    ]
    gateways: Annotated[
        Sequence[str] | None,
        _axis(
            "Policies of the gateway, see `list gateways`; `none` runs without a gateway.",
            SCHEDULER,
            "gateway",
        ),
    ]
    saturations: Annotated[
        Sequence[str] | None,
        _axis(
            "Saturation detectors of the gateways, see `list gateways`.", SCHEDULER, "saturation"
        ),
    ]
    routers: Annotated[
        int | Sequence[int] | None,
        _axis(
            "Numbers of routers that share the workers.", SCHEDULER, "routers", int, metavar="1,2"
        ),
    ]
    router: Annotated[
        str | Sequence[str] | None,
        _axis("Routers to use instead of the schedulers' own.", SCHEDULER, "router"),
    ]
    local: Annotated[
        str | Sequence[str] | None,
        _axis("Local schedulers to use instead of the schedulers' own.", SCHEDULER, "local"),
    ]
    request_rate: Annotated[
        float | Sequence[float] | None,
        _axis(
            "Programs/s of each well-behaved client over the whole cluster.",
            LOAD,
            "request_rate",
            float,
            metavar="X,Y",
            default="the workload's, times dp",
            unit="programs/s",
        ),
    ]
    clients: Annotated[
        int | Sequence[int] | None,
        _axis("Numbers of clients.", WORKLOAD, "clients", int, metavar="2,8"),
    ]
    backend: Annotated[
        str | None,
        Flag(
            "Simulate all points, or run them on real servers one after another; a file says how "
            "in a table [base.backend].",
            SERVERS,
            "sim",
            "|".join((SIM, *STARTED)),
        ),
    ]


SWEEP = flags_of(SweepFlags)
