"""Functions that detect the format of a trace file and read its programs by client."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from pathlib import Path

from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.files.reader import digest
from fairbench.files.times import UNITS, UTC_ZONE, ClockTime, clock_of
from fairbench.records.column_names import mapped
from fairbench.records.known_formats import LOOKED_AT, kinds_of, layout_of
from fairbench.records.log_reader import beginning
from fairbench.records.requests import FileRequests, counted_alike, lacks_counts, read_requests
from fairbench.records.source import records_of
from fairbench.workloads.traces import AUTO, FORMATS
from fairbench.workloads.traces.change import assigned, spread_out
from fairbench.workloads.traces.programs import FileTraffic, RecordedTrace
from fairbench.workloads.traces.requests import format_name as name_of_format
from fairbench.workloads.traces.requests import trace_asked, trace_table
from fairbench.workloads.traces.servegen import SERVEGEN, ServeGen
from fairbench.workloads.traces.table import TableBuilder, TraceTable
from fairbench.workloads.traces.weka import WEKA, Weka

PROGRAMS: dict[str, Weka | ServeGen] = {one.name: one for one in (WEKA, SERVEGEN)}
"""The formats whose records are programs or distributions; they are detected first.

Formats whose records are requests are read by ``fairbench.records``.
"""


FOLDERS = "FAIRBENCH_DATA"


def find_trace_file(name: str) -> Path:
    """Return the path of a file in the current folder or in a folder of ``FAIRBENCH_DATA``."""
    folders = [text for text in os.environ.get(FOLDERS, "").split(os.pathsep) if text]
    for folder in ("", *folders):
        if "\0" not in name and (path := Path(folder) / name).is_file():
            return path
    if "\0" not in name and Path(name).exists():
        raise DataError(f"trace {name}: is not a file")
    where = f"the folders of {FOLDERS}" if folders else f"{FOLDERS}, which is not set"
    raise DataError(f"trace {name}: no such file in the current folder or in {where}")


MAX_CLIENTS = 1000
MAX_SCALE = 1e9


@dataclass(frozen=True)
class TraceParams:
    """Options for reading a trace file, also used as parameters of ``arrivals`` in workload files.

    Attributes:
        file: A path, or a name in a folder of ``FAIRBENCH_DATA``.
        format: One of ``FORMATS``, or ``auto`` to detect the format.
        sha256: The SHA-256 digest that the file must have, or "" to accept every file.
        time_scale: The seconds of the trace that are replayed in one second of the run.
        columns: The names of columns, as comma-separated ``FIELD=COLUMN``.
        clients: The number of made-up clients to which programs are assigned; 0 keeps the recorded
            clients.
        spread: Whether requests with equal times are spread until the next recorded time.
        line: The run to read from a file with several runs, usually its line number (from 1).
        block_size: The tokens of each block in ``hash_ids``; 0 means the size that the file or the
            format defines.
        time_unit: The unit of times that have no unit, or "" if unknown.
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
    """Raise UsageError if a parameter is outside the range that a replay allows."""
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
    """A trace that was read from a file, with facts about the file.

    ``unit`` is the unit of the file's times, if known. If the times are not dates, ``clock`` is
    None. ``nameless`` is a remark for the user that no column names clients, or "". ``cached`` is
    the name of a column of cached tokens that replays ignore, or "" if there is none. ``counted``
    is False if the file has no token counts; each request is then replayed with one token.
    """

    trace: FileTraffic
    format: str
    sha256: str
    unit: str = ""
    clock: ClockTime | None = None
    nameless: str = ""
    cached: str = ""
    counted: bool = True


def read_trace(params: TraceParams) -> ReadTrace:
    """Return the traffic that a trace file contains.

    Raises DataError with file, line and field for wrong content, and UsageError for wrong options.

    The latest traces are cached until their files change. With a ``sha256`` in ``params``, a trace
    stays cached even if its file changes, so that a run in progress can end.
    """
    return _read_pinned(params) if params.sha256 else _read_current(params)


def _read_current(params: TraceParams) -> ReadTrace:
    path = find_trace_file(params.file)
    state = path.stat()
    chosen = replace(params, file="", format=_format_of(path, params), sha256="", time_scale=1.0)
    found = _read_version(path, state.st_mtime_ns, state.st_size, chosen)
    if params.sha256 not in ("", found.sha256):
        raise DataError(
            f"trace {params.file}: the file has changed since the experiment was stored: "
            f"its SHA-256 is {found.sha256} instead of {params.sha256}"
        )
    return found


_read_pinned = lru_cache(maxsize=2)(_read_current)


def _format_of(path: Path, params: TraceParams) -> str:
    state = path.stat()
    chosen = params.format
    return _detected_format(path, state.st_mtime_ns, state.st_size) if chosen == AUTO else chosen


@lru_cache(maxsize=8)
def _detected_format(path: Path, mtime_ns: int, size: int) -> str:
    texts, places, _ = beginning(path)
    head = [one.value for one in places]
    for record in head[:LOOKED_AT]:
        for name, one in PROGRAMS.items():
            if one.fits(record):
                return name
    return name_of_format(layout_of(None, kinds_of(head)).name, texts=texts)


@lru_cache(maxsize=2)
def _read_version(path: Path, mtime_ns: int, size: int, params: TraceParams) -> ReadTrace:
    """Read a trace; ``mtime_ns`` and ``size`` are only used as parts of the cache key."""
    if params.format in PROGRAMS:
        return _trace_of_programs(path, PROGRAMS[params.format], params)
    if params.format not in FORMATS:
        raise unknown_name("trace format", params.format, [AUTO, *FORMATS])
    asked = trace_asked(mapped(columns_of(params.columns)), params.format, params.line)
    requests = read_requests(path, asked, params.time_unit or None)
    return trace_of(path, requests, params)


def trace_of(
    path: Path, requests: FileRequests, params: TraceParams, *, counted: bool = True
) -> ReadTrace:
    """Return requests of a file as a trace; ``counted`` is False if the file lacks token counts."""
    table, notes = trace_table(requests, params.block_size, counted=counted)
    trace = RecordedTrace(_with_synthetic_parts(table, params))
    columns = requests.columns
    return ReadTrace(
        *(trace, name_of_format(columns.layout.name, texts=columns.text)),
        *(digest(path, f"{path}"), notes.unit),
        clock_of(notes.began_s, notes.zone, trace.span_s),
        *("" if params.clients else notes.nameless, notes.cached),
    )


def _with_synthetic_parts(table: TraceTable, params: TraceParams) -> TraceTable:
    table = spread_out(table) if params.spread else table
    return assigned(table, params.clients) if params.clients else table


def read_with_requests(
    params: TraceParams, fields: Collection[str], signs: Collection[str]
) -> tuple[ReadTrace, FileRequests | None]:
    """Read a trace file; return the trace, and its requests including the extra ``fields``.

    If the trace's format is one of ``PROGRAMS``, the second result is None.

    Args:
        params: The options for reading the file.
        fields: Additional fields to read for each request.
        signs: The names of columns that tell how requests ended.
    """
    path = find_trace_file(params.file)
    name = _format_of(path, params)
    if name in PROGRAMS:
        return read_trace(params), None
    asked = trace_asked(mapped(columns_of(params.columns)), name, params.line)
    asked = replace(asked, fields=(*asked.fields, *fields), signs=signs)
    requests = read_requests(path, asked, params.time_unit or None)
    counted = not lacks_counts(requests)
    requests = requests if counted else counted_alike(requests)
    as_recorded = replace(params, clients=0, spread=False)
    read = trace_of(path, requests, as_recorded, counted=counted)
    return replace(read, counted=counted), requests


def _trace_of_programs(path: Path, chosen: Weka | ServeGen, params: TraceParams) -> ReadTrace:
    records = records_of(path, streamed=True)
    names = columns_of(params.columns)
    if params.line:
        raise UsageError(
            f"--trace-line {params.line}: cannot be given for the format {chosen.name}, whose "
            "files hold a single run"
        )
    if isinstance(chosen, ServeGen):
        if params.clients or params.spread:
            field = "clients" if params.clients else "spread"
            raise UsageError(
                f"{field}: cannot be given for the format {chosen.name}, whose files define "
                f"clients and times; leave {field} out"
            )
        trace, sha256 = chosen.trace(records, names), digest(path, f"{path}")
        return ReadTrace(trace, chosen.name, sha256, chosen.unit)
    builder = TableBuilder(f"{path}")
    for row in chosen.rows(records, names):
        if row is None:
            builder.left_out += 1
        else:
            builder.add(row)
    table = builder.table()
    clock = clock_of(builder.began_s, UTC_ZONE, table.span_s)
    made = RecordedTrace(_with_synthetic_parts(table, params))
    return ReadTrace(made, chosen.name, digest(path, f"{path}"), chosen.unit, clock)


def joined_columns(names: Mapping[str, str]) -> str:
    """Join column names to a text ``FIELD=COLUMN,...``, as in ``TraceParams.columns``.

    Raises UsageError if a column name contains a comma.
    """
    for field, name in names.items():
        if "," in name:
            raise UsageError(f"--map {field}={name}: the name of a column must not contain a comma")
    return ",".join(f"{field}={name}" for field, name in names.items())


def columns_of(text: str) -> dict[str, str]:
    """Return the column names by field from a text ``FIELD=COLUMN,...``."""
    return {
        field: name for field, _, name in (one.partition("=") for one in text.split(",") if one)
    }
