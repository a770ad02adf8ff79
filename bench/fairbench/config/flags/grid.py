"""The flags of ``sweep``: axes of its grid, and flags shared by all points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fairbench.config.flags.experiment import EveryFlags, SeedFlags, SetupFlags
from fairbench.config.flags.flag import Flag, flags_of, values_of
from fairbench.config.flags.run import RUN


def _axis(
    name: str, metavar: str = "A,B", read: Callable[[str], Any] = str, about: str = ""
) -> Flag:
    """Declare a flag of ``run`` with several values, each of which is run."""
    return RUN[name].but(about, metavar=metavar, option="", read=values_of(read), axis=True)


class SweepFlags(SetupFlags, EveryFlags, SeedFlags, total=False):
    """Flags of ``fairbench sweep``; its ``--help`` describes them."""

    schedulers: Annotated[Sequence[str] | None, _axis("scheduler")]
    workloads: Annotated[Sequence[str] | None, _axis("workload")]
    scenarios: Annotated[Sequence[str] | None, _axis("scenario")]
    dp: Annotated[int | Sequence[int] | None, _axis("dp", "1,2", int)]
    prefill: Annotated[int | Sequence[int] | None, _axis("prefill", "1,2", int)]
    decode: Annotated[int | Sequence[int] | None, _axis("decode", "1,2", int)]
    evictions: Annotated[Sequence[str] | None, _axis("eviction")]
    gateways: Annotated[Sequence[str] | None, _axis("gateway")]
    saturations: Annotated[Sequence[str] | None, _axis("saturation")]
    routers: Annotated[int | Sequence[int] | None, _axis("routers", "1,2", int)]
    router: Annotated[str | Sequence[str] | None, _axis("router")]
    local: Annotated[str | Sequence[str] | None, _axis("local")]
    request_rate: Annotated[float | Sequence[float] | None, _axis("request_rate", "X,Y", float)]
    clients: Annotated[
        int | Sequence[int] | None, _axis("clients", "2,8", int, "Number of clients.")
    ]
    backend: Annotated[
        str | None,
        RUN["backend"].but(
            "Simulate all points, or run them on real servers one after another; a file says how "
            "in a table [base.backend].",
            key="backend",
        ),
    ]


SWEEP = flags_of(SweepFlags)
