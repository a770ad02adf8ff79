"""Reading a trace: its file (JSON lines, JSON or CSV), its format, and its clients."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from pathlib import Path

from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.files.reader import digest
from fairbench.files.times import UNITS, UTC_ZONE, Clock, clock_of
from fairbench.records.columns import beginning
from fairbench.records.layouts import LOOKED_AT, kinds_of, layout_of
from fairbench.records.names import mapped
from fairbench.records.requests import (
    Requests,
    counted_alike,
    lacks_counts,
    read_requests,
)
from fairbench.records.source import records_of
from fairbench.workloads.traces.change import assigned, spread_out
from fairbench.workloads.traces.format import Asked, Format, Measured, Trace
from fairbench.workloads.traces.formats import PROGRAMS
from fairbench.workloads.traces.programs import RecordedTrace
from fairbench.workloads.traces.requests import format_name as name_of_format
from fairbench.workloads.traces.requests import trace_asked, trace_table
from fairbench.workloads.traces.rows import AUTO, FORMATS
from fairbench.workloads.traces.table import Table, TableBuilder

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
    overrides file and format. ``time_unit`` is the unit of times without one, "" if unknown.
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
    time_unit: str = ""


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
    if params.time_unit not in ("", *UNITS):
        raise unknown_name("time_unit", params.time_unit, UNITS)
    for name in ("clients", "line", "block_size"):
        if (value := getattr(params, name)) < 0:
            raise UsageError(f"{name} = {value}: must be above 0")


@dataclass(frozen=True)
class ReadTrace:
    """A trace with facts about its file.

    ``unit`` is the unit of its times, if any; ``clock`` has their dates, if they are dates.
    ``nameless`` says that no column has clients, ``cached`` names the column of cached tokens that
    are not replayed, "" for none. ``counted`` is false if the file has no token counts, so that
    each request has one token.
    """

    trace: Trace
    format: str
    sha256: str
    unit: str = ""
    clock: Clock | None = None
    nameless: str = ""
    cached: str = ""
    counted: bool = True


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
        name = _name_of(path, state.st_mtime_ns, state.st_size)
    found = _read(
        *(path, state.st_mtime_ns, state.st_size, name, params.columns, params.line),
        *(params.clients, params.spread, params.block_size, params.time_unit),
    )
    if params.sha256 not in ("", found.sha256):
        raise DataError(
            f"trace {params.file}: the file has changed since the experiment was stored: "
            f"its SHA-256 is {found.sha256} instead of {params.sha256}"
        )
    return found


@lru_cache(maxsize=8)
def _name_of(path: Path, mtime_ns: int, size: int) -> str:
    """Return the format of a file, by its first records of each kind."""
    texts, places, _ = beginning(path)
    head = [one.value for one in places]
    for record in head[:LOOKED_AT]:
        for name, one in PROGRAMS.items():
            if one.fits(record):
                return name
    return name_of_format(layout_of(None, kinds_of(head)).name, texts=texts)


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
    time_unit: str,
) -> ReadTrace:
    names = columns_of(columns)
    if format_name in PROGRAMS:
        return _programs(path, PROGRAMS[format_name], names, line, clients, spread)
    if format_name not in FORMATS:
        raise unknown_name("trace format", format_name, [AUTO, *FORMATS])
    asked = trace_asked(mapped(names), format_name, line)
    requests = read_requests(path, asked, time_unit or None)
    return trace_of(path, requests, clients, spread=spread, block_size=block_size)


def trace_of(
    path: Path,
    requests: Requests,
    clients: int = 0,
    *,
    spread: bool = False,
    block_size: int = 0,
    counted: bool = True,
) -> ReadTrace:
    """Return requests of a file as a trace."""
    table, notes = trace_table(requests, block_size, counted=counted)
    trace = RecordedTrace(_changed(table, clients, spread=spread))
    clock = clock_of(notes.began_s, notes.zone, trace.span_s)
    nameless = "" if clients else notes.nameless
    name = name_of_format(requests.columns.layout.name, texts=requests.columns.text)
    return ReadTrace(
        *(trace, name, digest(path, f"{path}"), notes.unit),
        *(clock, nameless, notes.cached),
    )


def _changed(table: Table, clients: int, *, spread: bool) -> Table:
    if spread:
        table = spread_out(table)
    return assigned(table, clients) if clients else table


def read_with_requests(
    params: TraceParams, fields: Collection[str], signs: Collection[str]
) -> tuple[ReadTrace, Requests | None]:
    """Return a file's trace and, unless it has programs, its requests with further fields.

    Args:
        params: How to read the file.
        fields: Further fields of the requests.
        signs: Names of columns that say how requests ended.
    """
    path = find(params.file)
    state = path.stat()
    name = params.format
    if name == AUTO:
        name = _name_of(path, state.st_mtime_ns, state.st_size)
    if name in PROGRAMS:
        return read_trace(params), None
    asked = trace_asked(mapped(columns_of(params.columns)), name, params.line)
    asked = replace(asked, fields=(*asked.fields, *fields), signs=signs)
    requests = read_requests(path, asked, params.time_unit or None)
    counted = not lacks_counts(requests)
    requests = requests if counted else counted_alike(requests)
    read = trace_of(path, requests, block_size=params.block_size, counted=counted)
    return replace(read, counted=counted), requests


def _programs(
    path: Path,
    chosen: Format | Measured,
    names: Mapping[str, str],
    line: int,
    clients: int,
    spread: bool,
) -> ReadTrace:
    """Return the trace of a file whose records are programs or distributions."""
    records = records_of(path, streamed=True)
    asked = Asked(names)
    if line:
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
    for row in chosen.rows(records, asked):
        if row is None:
            builder.left_out += 1
        else:
            builder.add(row)
    table = builder.table()
    clock = clock_of(builder.began_s, UTC_ZONE, table.span_s)
    made = RecordedTrace(_changed(table, clients, spread=spread))
    unit = asked.notes.get("unit", "")
    return ReadTrace(made, chosen.name, digest(path, f"{path}"), unit, clock)


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
