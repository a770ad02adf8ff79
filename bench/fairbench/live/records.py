"""Live records: written line by line during a run, and read back into tables.

Times are seconds since the start of the run. Clients and states are by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias, TypeVar

import msgspec
import numpy as np

from fairbench.errors import DataError, RunFailed, UsageError
from fairbench.files.reader import lines
from fairbench.live.service_rows import service_of
from fairbench.metrics.records import STATUS_NAMES, Programs, Requests
from fairbench.metrics.tables import Tables

FINISHED, REFUSED, UNFINISHED = STATUS_NAMES
REQUESTS_FILE, PROGRAMS_FILE = "requests.jsonl", "programs.jsonl"


Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Time: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e9, le=1e12)]  # in seconds


class RequestRecord(msgspec.Struct, frozen=True):
    """A finished request: the columns of ``metrics.records.Requests``, and further facts.

    ``arrival_s`` is when the request was due (after waiting ``held_s`` for a free slot), ``sent_s``
    when it was sent, None if it was not. ``admitted_s`` is None unless the server says how long it
    queued. ``cached_tokens`` is None if the server does not say. ``chunk_s`` and ``chunk_tokens``
    are the times and sizes of the chunks of output. ``error`` says why a request was refused or
    broke off. ``min_new_tokens`` is the smallest length that the request asked for. ``estimated``
    is true if the server did not report the tokens of the prompt or of the answer.
    """

    request_id: Count
    program_id: Count
    client: str
    depth: Count
    worker: Annotated[int, msgspec.Meta(ge=-1, lt=2**31)]
    arrival_s: Time
    sent_s: Time | None
    held_s: Time
    admitted_s: Time | None
    first_token_s: Time | None
    finish_s: Time | None
    input_tokens: Count
    cached_tokens: Count | None
    output_tokens: Count
    max_new_tokens: Count
    retractions: Count
    status: str
    error: str | None
    chunk_s: list[Time]
    chunk_tokens: list[Count]
    min_new_tokens: Count | None = None
    estimated: bool = False


class ProgramRecord(msgspec.Struct, frozen=True):
    """A finished program: the columns of ``metrics.records.Programs``."""

    program_id: Count
    client: str
    arrival_s: Time
    finish_s: Time | None
    requests: Count
    demand_requests: Count
    demand_input_tokens: Count
    demand_output_tokens: Count
    status: str


@dataclass(frozen=True, slots=True)
class LiveRecords:
    """All records of a live run."""

    requests: list[RequestRecord]
    programs: list[ProgramRecord]


def read_records(directory: Path) -> LiveRecords:
    """Read the records in a directory, without a truncated last line.

    Raises DataError if a file is unreadable, or for a wrong line, which it names.
    """
    return LiveRecords(
        _read(directory / REQUESTS_FILE, RequestRecord),
        _read(directory / PROGRAMS_FILE, ProgramRecord),
    )


def tables_of(records: LiveRecords, clients: Sequence[str]) -> Tables:
    """Return records as tables of simulated runs, with a service log derived from the requests.

    If the server does not report it, a request counts as admitted at its first token, and its input
    as uncached; where the server reports cached tokens of other requests, the input of this request
    counts as neither. Raises DataError for a client that is not in ``clients``.
    """
    rows = sorted(records.requests, key=lambda record: record.request_id)
    columns = _columns(rows, RequestRecord, clients)
    # the time of the client; in a simulation the column says when KV memory was sent
    del columns["sent_s"]
    if not columns["estimated"].any():
        del columns["estimated"]
    admitted, first = columns["admitted_s"], columns["first_token_s"]
    columns["admitted_s"] = np.where(np.isnan(admitted), first, np.fmin(admitted, first))
    unknown = np.isnan(columns["admitted_s"])
    if not np.isnan(columns["cached_tokens"]).all():
        unknown |= np.isnan(columns["cached_tokens"])
    columns["cached_tokens"] = np.nan_to_num(columns["cached_tokens"])
    uncached = columns["input_tokens"] - columns["cached_tokens"]
    columns["extend_tokens"] = np.where(unknown, 0, uncached)
    columns["recompute_tokens"] = np.zeros(len(rows))
    columns |= dict.fromkeys(("retracted_s", "readmitted_s"), np.full(len(rows), np.nan))
    requests = Requests.from_columns(columns)
    last_s = np.array([row.chunk_s[-1] if row.chunk_s else np.nan for row in rows])
    programs = sorted(records.programs, key=lambda record: record.program_id)
    return Tables(
        list(clients),
        requests,
        Programs.from_columns(_columns(programs, ProgramRecord, clients)),
        service_of(requests, last_s),
    )


_Record = TypeVar("_Record", RequestRecord, ProgramRecord)


def _columns(
    records: Iterable[Any], kind: type[msgspec.Struct], clients: Sequence[str]
) -> dict[str, Any]:
    """Return arrays by field, without lists: None becomes NaN, clients and states numbers."""
    rows = [msgspec.structs.astuple(record) for record in records]
    names = kind.__struct_fields__
    table = dict(zip(names, zip(*rows, strict=True) if rows else ((),) * len(names), strict=True))
    columns: dict[str, Any] = {
        name: np.array(values, dtype=np.float64)
        for name, values in table.items()
        if name not in ("client", "status", "error", "chunk_s", "chunk_tokens")
    }
    columns["client"] = _codes("client", table["client"], clients)
    columns["status"] = _codes("status", table["status"], STATUS_NAMES)
    return columns


def _codes(what: str, values: Iterable[str], names: Sequence[str]) -> list[int]:
    index = {name: number for number, name in enumerate(names)}
    try:
        return [index[value] for value in values]
    except KeyError as error:
        raise DataError(
            f"live records: {what} {error} is unknown: choose from {', '.join(names)}"
        ) from None


def _read(path: Path, kind: type[_Record]) -> list[_Record]:
    decode = msgspec.json.Decoder(kind).decode
    records = []
    for number, line in lines(path, f"{path}", blank=True, streamed=True):
        if not line.endswith(b"\n"):
            break  # the last line was cut off
        try:
            records.append(decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: {error}") from None
    return records


class Journal:
    """Two JSON lines files in a directory. Each record is written immediately.

    Raises UsageError if the files cannot be created.
    """

    def __init__(self, directory: Path) -> None:
        try:
            self._requests = (directory / REQUESTS_FILE).open("wb", buffering=0)
            self._programs = (directory / PROGRAMS_FILE).open("wb", buffering=0)
        except OSError as error:
            raise UsageError(f"{directory}: cannot be written: {error.strerror}") from None
        self._encode = msgspec.json.Encoder().encode

    def request(self, record: RequestRecord) -> None:
        """Append a request. Raises RunFailed if that is impossible, such as on a full disk."""
        self._append(self._requests, record)

    def program(self, record: ProgramRecord) -> None:
        """Append a program. Raises the errors of ``request``."""
        self._append(self._programs, record)

    def _append(self, file: FileIO, record: msgspec.Struct) -> None:
        try:
            file.write(self._encode(record) + b"\n")
        except OSError as error:
            raise RunFailed(f"{file.name!s}: cannot be written: {error.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.close()
        self._programs.close()
