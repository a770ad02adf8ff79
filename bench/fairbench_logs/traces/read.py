"""Functions that detect the format of a trace file and read its programs by client."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.files.reader import digest
from fairbench.files.times import UTC_ZONE, clock_of
from fairbench.workloads.traces import AUTO, FORMATS
from fairbench.workloads.traces.programs import RecordedTrace
from fairbench.workloads.traces.read import ReadTrace, TraceParams, find_trace_file
from fairbench.workloads.traces.table import TraceTable
from fairbench_logs.records.column_names import mapped
from fairbench_logs.records.known_formats import LOOKED_AT, kinds_of, layout_of
from fairbench_logs.records.log_reader import beginning
from fairbench_logs.records.requests import FileRequests, counted_alike, lacks_counts, read_requests
from fairbench_logs.records.source import records_of
from fairbench_logs.traces.build import TableBuilder
from fairbench_logs.traces.change import assigned, spread_out
from fairbench_logs.traces.requests import format_name as name_of_format
from fairbench_logs.traces.requests import trace_asked, trace_table
from fairbench_logs.traces.servegen import SERVEGEN, ServeGen
from fairbench_logs.traces.weka import WEKA, Weka

PROGRAMS: dict[str, Weka | ServeGen] = {one.name: one for one in (WEKA, SERVEGEN)}
"""The formats whose records are programs or distributions; they are detected first.

Formats whose records are requests are read by ``fairbench_logs.records``.
"""


def read_trace(params: TraceParams) -> ReadTrace:
    """Return the traffic in a trace file, from the cache if the file is unchanged."""
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
        repeated=requests.repeated,
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


def columns_of(text: str) -> dict[str, str]:
    """Return the column names by field from a text ``FIELD=COLUMN,...``."""
    return {
        field: name for field, _, name in (one.partition("=") for one in text.split(",") if one)
    }
