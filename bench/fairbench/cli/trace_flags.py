"""Flags of ``run`` and ``trace`` that say how to read a recorded trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option

from fairbench.cli.flags import split_commas
from fairbench.workloads.traces.columns import FIELDS
from fairbench.workloads.traces.formats import AUTO, FORMATS

if TYPE_CHECKING:
    from fairbench.workloads.traces.read import TraceParams

TraceFormat = Annotated[
    str | None,
    Option(
        metavar="|".join((AUTO, *FORMATS)),
        help="Format of the trace. [default: auto, the first that fits]",
    ),
]
TraceMap = Annotated[
    list[str] | None,
    Option(
        "--map",
        metavar="FIELD=COLUMN",
        help="A column of the trace that has no common name; may be repeated. Fields: "
        f"{', '.join(FIELDS)}; time_ms and so on for other units.",
    ),
]
TraceLine = Annotated[
    int | None,
    Option(min=1, help="Number of the run, from 1, in a trace file with one run a line."),
]
TraceBlockSize = Annotated[
    int | None,
    Option(min=1, help="Tokens of each block in hash_ids. [default: what file or format says]"),
]
ClientsFrom = Annotated[
    str | None,
    Option(metavar="COLUMN", help="The column of a trace that says whose a request is."),
]
Misbehaving = Annotated[
    str | None,
    Option(
        metavar="A,B", help="Heavy clients of the trace: metrics of the well-behaved omit them."
    ),
]


def log_params(
    file: str,
    trace_format: str | None,
    names: list[str] | None,
    clients_from: str | None,
    line: int | None,
    block_size: int | None = None,
) -> TraceParams:
    """Return how a file is to be read, from these flags. Raises UsageError."""
    from fairbench.workloads.traces.columns import parse_names
    from fairbench.workloads.traces.read import TraceParams, check_params, joined_columns

    columns = parse_names(names)
    if clients_from is not None:
        columns["client"] = clients_from
    params = TraceParams(
        file,
        trace_format or AUTO,
        columns=joined_columns(columns),
        line=line or 0,
        block_size=block_size or 0,
    )
    check_params(params)
    return params


def heavy_clients(text: str | None) -> list[str] | None:
    """Return the clients that ``--misbehaving`` names. Raises UsageError."""
    return split_commas("--misbehaving", text) if text else None
