"""The parameters of a trace file, and the function that reads the file.

The traffic in a trace file is read by an installed package, which registers itself as an entry
point (``TraceReader``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Protocol

from fairbench.doors import LOG_GROUP, through
from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.files.times import UNITS, ClockTime
from fairbench.workloads.traces import AUTO
from fairbench.workloads.traces.programs import FileTraffic

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
    ``repeated`` is the number of lines that repeat an earlier request of the file.
    """

    trace: FileTraffic
    format: str
    sha256: str
    unit: str = ""
    clock: ClockTime | None = None
    nameless: str = ""
    cached: str = ""
    counted: bool = True
    repeated: int = 0


class TraceReader(Protocol):
    """The interface of the package that reads traces, which is the entry point of ``LogTools``."""

    def read_trace(self, params: TraceParams, /) -> ReadTrace:
        """Return the traffic that a trace file contains; see ``read_trace`` below."""
        ...

    def parse_map(self, texts: Iterable[str], needed: Iterable[str], /) -> dict[str, str]:
        """Parse texts ``FIELD=COLUMN``; raise UsageError for a wrong text or unknown field.

        ``FIELD=`` without a column states that the file lacks the field, which is an error for
        ``needed`` fields.
        """
        ...

    def mapped(self, names: Mapping[str, str], /) -> Mapping[str, Any]:
        """Return the columns by field; raise UsageError for an unknown field in ``names``."""
        ...


def trace_reader() -> TraceReader:
    """Return the reader of traces, which an installed package registered.

    Raises UsageError if the package does not fit this version of fairbench.
    """
    reader: TraceReader = through(LOG_GROUP, "tools")
    return reader


def read_trace(params: TraceParams) -> ReadTrace:
    """Return the traffic that a trace file contains.

    Raises DataError with file, line and field for wrong content, and UsageError for wrong options.

    The latest traces are cached until their files change. With a ``sha256`` in ``params``, a trace
    stays cached even if its file changes, so that a run in progress can end.
    """
    return trace_reader().read_trace(params)


def joined_columns(names: Mapping[str, str]) -> str:
    """Join column names to a text ``FIELD=COLUMN,...``, as in ``TraceParams.columns``.

    Raises UsageError if a column name contains a comma.
    """
    for field, name in names.items():
        if "," in name:
            raise UsageError(f"--map {field}={name}: the name of a column must not contain a comma")
    return ",".join(f"{field}={name}" for field, name in names.items())
