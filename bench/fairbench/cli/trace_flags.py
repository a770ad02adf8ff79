"""Flags of ``run`` and ``trace`` that describe how to read a recorded trace."""

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
        help="Format of the trace. [default: auto, the first format that fits]",
    ),
]
TraceMap = Annotated[
    list[str] | None,
    Option(
        "--map",
        metavar="FIELD=COLUMN",
        help="Column of the trace that holds a field, if its name is not a common one; may be "
        f"repeated. Fields: {', '.join(FIELDS)}. time_ms is the time in milliseconds, and "
        "so on.",
    ),
]
TraceLine = Annotated[
    int | None,
    Option(min=1, help="Number of the run, from 1, in a trace file with one run a line."),
]
TraceBlockSize = Annotated[
    int | None,
    Option(
        min=1,
        help="Number of tokens of each block in hash_ids. [default: from the file or its format]",
    ),
]
ClientsFrom = Annotated[
    str | None,
    Option(metavar="COLUMN", help="Column of the trace that names the client of a request."),
]
Misbehaving = Annotated[
    str | None,
    Option(
        metavar="A,B",
        help="Heavy clients of the trace; metrics of the well-behaved clients omit them.",
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
    """Return the options for reading a file from these flags. Raises UsageError."""
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
