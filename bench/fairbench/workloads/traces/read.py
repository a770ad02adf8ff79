"""Reading a trace: its file (JSON lines, JSON or CSV), its format, and its clients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from pathlib import Path

from fairbench.errors import DataError, UsageError
from fairbench.files.reader import digest
from fairbench.files.records import records_of
from fairbench.files.times import UTC_ZONE, Clock, clock_of
from fairbench.workloads.traces.change import assigned, spread_out
from fairbench.workloads.traces.format import Asked, Measured, Trace
from fairbench.workloads.traces.formats import format_of
from fairbench.workloads.traces.formats.tables import Columnwise
from fairbench.workloads.traces.programs import RecordedTrace
from fairbench.workloads.traces.rows import AUTO
from fairbench.workloads.traces.table import TableBuilder

FOLDERS = "FAIRBENCH_DATA"


def find(name: str) -> Path:
    """Return the file with this name, here or in a folder of ``FAIRBENCH_DATA``."""
    folders = [text for text in os.environ.get(FOLDERS, "").split(os.pathsep) if text]
    for folder in ("", *folders):
        if "\0" not in name and (path := Path(folder) / name).is_file():
            return path
    if "\0" not in name and Path(name).exists():
        raise DataError(f"trace {name}: is not a file")
    where = f"the folders of {FOLDERS}" if folders else f"{FOLDERS}, which is not set"
    raise DataError(f"trace {name}: no such file, neither here nor in {where}")


MAX_CLIENTS = 1000
MAX_SCALE = 1e9


@dataclass(frozen=True)
class TraceParams:
    """The options for reading a trace file, also the parameters of ``arrivals``.

    ``file`` is a path, or a name in a folder of ``FAIRBENCH_DATA``. ``format`` is one of
    ``FORMATS``, or detected. ``columns`` names columns as comma-separated ``FIELD=COLUMN``.
    ``line`` selects one of several runs in a file. ``clients`` above 0 assigns the programs to this
    number of made-up clients. ``spread`` separates requests that were recorded at the same time.
    ``sha256``, if given, must be the file's digest. ``time_scale`` seconds of the trace pass in one
    second. ``block_size`` above 0 is the number of tokens of each block in ``hash_ids`` and
    overrides file and format.
    """

    file: str
    format: str = AUTO
    sha256: str = ""
    time_scale: float = 1.0
    columns: str = ""
    clients: int = 0
    spread: bool = False
    line: int = 0
    block_size: int = 0


def check_params(params: TraceParams) -> None:
    """Raise UsageError if a number is outside the range that a replay allows."""
    if not 0 < params.time_scale < inf:
        raise UsageError(f"time_scale = {params.time_scale}: must be above 0")
    if not 1 / MAX_SCALE <= params.time_scale <= MAX_SCALE:
        raise UsageError(
            f"time_scale = {params.time_scale}: must be from {1 / MAX_SCALE:g} to {MAX_SCALE:g}"
        )
    if params.clients > MAX_CLIENTS:
        raise UsageError(f"clients = {params.clients}: must be at most {MAX_CLIENTS:,}")
    for name in ("clients", "line", "block_size"):
        if (value := getattr(params, name)) < 0:
            raise UsageError(f"{name} = {value}: must be above 0")


@dataclass(frozen=True)
class ReadTrace:
    """A trace with facts about its file.

    ``unit`` is the unit of its times, if any; ``clock`` has their dates, if they are dates.
    ``nameless`` and ``cached`` are as in ``Asked.notes``, "" for none.
    """

    trace: Trace
    format: str
    sha256: str
    unit: str = ""
    clock: Clock | None = None
    nameless: str = ""
    cached: str = ""


def read_trace(params: TraceParams) -> ReadTrace:
    """Return the traffic of a file. Raises DataError (file, line, field) or UsageError.

    The last few traces are cached for as long as their files do not change. A trace given by
    ``sha256`` stays cached after changes of the file, so that a run that has begun can end.
    """
    return _meant(params) if params.sha256 else _found(params)


@lru_cache(maxsize=2)
def _meant(params: TraceParams) -> ReadTrace:
    return _found(params)


def _found(params: TraceParams) -> ReadTrace:
    path = find(params.file)
    state = path.stat()
    name = params.format
    if name == AUTO:  # found from its first records, so that each caller reads the file once
        name = format_of(AUTO, records_of(path, streamed=True))[0].name
    found = _read(
        *(path, state.st_mtime_ns, state.st_size, name, params.columns, params.line),
        *(params.clients, params.spread, params.block_size),
    )
    if params.sha256 not in ("", found.sha256):
        raise DataError(
            f"trace {params.file}: the file has changed since the experiment was stored: "
            f"its SHA-256 is {found.sha256} instead of {params.sha256}"
        )
    return found


@lru_cache(maxsize=2)
def _read(
    path: Path,
    mtime_ns: int,
    size: int,
    format_name: str,
    columns: str,
    line: int,
    clients: int,
    spread: bool,
    block_size: int,
) -> ReadTrace:
    chosen, records = format_of(format_name, records_of(path, streamed=True))
    asked = Asked(columns_of(columns), line, block_size=block_size)
    if line and not isinstance(chosen, Columnwise):
        raise UsageError(
            f"--trace-line {line}: cannot be given for the format {chosen.name}, whose files "
            "hold a single run"
        )
    if isinstance(chosen, Measured):
        if clients or spread:
            field = "clients" if clients else "spread"
            raise UsageError(
                f"{field}: cannot be given for the format {chosen.name}, whose files contain "
                "it; leave it out"
            )
        trace, sha256 = chosen.trace(records, asked), digest(path, f"{path}")
        return ReadTrace(trace, chosen.name, sha256, asked.notes.get("unit", ""))
    builder = TableBuilder(f"{path}")
    for _, row in chosen.rows(records, asked):
        if row is None:
            builder.left_out += 1
        else:
            builder.add(row)
    table = builder.table()
    if spread:
        table = spread_out(table)
    if clients:
        table = assigned(table, clients)
    sha256 = digest(path, f"{path}")
    notes = asked.notes
    clock = clock_of(builder.began_s, notes.get("zone", UTC_ZONE), table.span_s)
    nameless = "" if clients else notes.get("nameless", "")
    return ReadTrace(
        *(RecordedTrace(table), chosen.name, sha256, notes.get("unit", "")),
        *(clock, nameless, notes.get("cached", "")),
    )


def joined_columns(names: Mapping[str, str]) -> str:
    """Return the text form of ``columns``. Raises UsageError for a name with a comma."""
    for field, name in names.items():
        if "," in name:
            raise UsageError(f"--map {field}={name}: the name of a column must not contain a comma")
    return ",".join(f"{field}={name}" for field, name in names.items())


def columns_of(text: str) -> dict[str, str]:
    """Parse ``FIELD=COLUMN`` texts, separated by commas."""
    return {
        field: name for field, _, name in (one.partition("=") for one in text.split(",") if one)
    }
