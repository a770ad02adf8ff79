"""The flags that say how to read a log or a trace, for all commands that read one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypedDict

from fairbench.config.flags.flag import WORKLOAD, Flag, columns_of
from fairbench.workloads.traces.rows import AUTO, FIELDS, FORMATS


class LogFlags(TypedDict, total=False):
    """How to read a log or trace: of all commands that read one."""

    trace_format: Annotated[
        str | None,
        Flag(
            "Format of the trace.",
            WORKLOAD,
            "auto, the first that fits",
            "|".join((AUTO, *FORMATS)),
            key="trace.format",
        ),
    ]
    trace_map: Annotated[
        Mapping[str, str] | None,
        Flag(
            "Column of the trace that holds a field, if its name is not a common one; may be "
            f"repeated. Fields: {', '.join(FIELDS)}. time_ms is the time in milliseconds, and "
            "so on. To ignore a field, leave its column empty, as in session=.",
            WORKLOAD,
            metavar="FIELD=COLUMN",
            key="trace.columns",
            option="--map",
            read=columns_of,
            repeats=True,
        ),
    ]
    trace_line: Annotated[
        int | None,
        Flag(
            "Number of the run, from 1, in a trace file with one run a line.",
            WORKLOAD,
            key="trace.line",
            least=1,
        ),
    ]
    time_unit: Annotated[
        str | None,
        Flag(
            "Unit of times whose column does not state it: s, ms, us or ns.",
            WORKLOAD,
            "from the file",
            "s|ms|us|ns",
            key="trace.time_unit",
        ),
    ]
    clients_from: Annotated[
        str | None,
        Flag(
            "Column of the trace that names the client of a request.",
            WORKLOAD,
            metavar="COLUMN",
            key="trace.client",
        ),
    ]


class TraceFlags(LogFlags, total=False):
    """How to read a trace whose blocks may be of any size."""

    trace_block_size: Annotated[
        int | None,
        Flag(
            "Tokens of each block in hash_ids.",
            WORKLOAD,
            "from the file or format",
            key="trace.block_size",
            least=1,
        ),
    ]
