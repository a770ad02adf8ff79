"""Records of runs on real servers: files of JSON lines, and their conversion to tables.

Times are in seconds since the start of the run. Records contain the names of clients and states;
tables contain numbers instead of the names.

If a run has several drivers, each driver has a folder for its records and its clock offset. A
record is written as soon as a request or program ends, so ``fairbench recover`` can use the records
of a run that crashed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, TypeAlias, TypeVar

import msgspec
import numpy as np

from fairbench.errors import DataError, RunFailed, UsageError
from fairbench.files.formats import json_file
from fairbench.files.reader import lines
from fairbench.metrics.records import STATUS_NAMES, Programs, Requests
from fairbench.metrics.service import service_of
from fairbench.metrics.tables import Tables

FINISHED, REFUSED, UNFINISHED = STATUS_NAMES
REQUESTS_FILE, PROGRAMS_FILE = "requests.jsonl", "programs.jsonl"


Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Time: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e9, le=1e12)]


class RequestRecord(msgspec.Struct, frozen=True):
    """The record of an ended request, with all columns of ``metrics.records.Requests``.

    - ``arrival_s`` is the time at which the request was due, plus the ``held_s`` seconds for which
      the driver had no free slot.
    - ``submit_s`` is the time at which the driver sent the request ("sent_s" in the records file);
      None means that the request was never sent.
    - ``admitted_s`` is the time of admission; None means that the server does not report how long
      a request was queued.
    - ``cached_tokens`` is the number of cached prompt tokens that the server reported.
    - ``chunk_s`` and ``chunk_tokens`` are the times and the sizes (tokens) of the received chunks.
    - ``error`` is the reason why the request was refused, or why the answer broke off.
    - ``min_new_tokens`` is the minimum number of output tokens that the request asked for.
    - ``estimated`` is True if the server did not report the number of tokens of the prompt or of
      the answer.
    - ``compulsory_tokens`` is the number of prompt tokens that no earlier prompt or answer
      contains; None means unknown.
    """

    request_id: Count
    program_id: Count
    client: str
    depth: Count
    worker: Annotated[int, msgspec.Meta(ge=-1, lt=2**31)]
    arrival_s: Time
    submit_s: Time | None = msgspec.field(name="sent_s")
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
    compulsory_tokens: Count | None = None


class ProgramRecord(msgspec.Struct, frozen=True):
    """The record of a finished program, with the columns of ``metrics.records.Programs``."""

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
    """All records of a run on real servers."""

    requests: list[RequestRecord]
    programs: list[ProgramRecord]


def read_records(directory: Path) -> LiveRecords:
    """Read the records in a directory; an incomplete last line of a file is ignored.

    Raises DataError if a file is unreadable or a line is invalid; the message names the line.
    """
    return LiveRecords(
        _read_file(directory / REQUESTS_FILE, RequestRecord),
        _read_file(directory / PROGRAMS_FILE, ProgramRecord),
    )


def tables_of(records: LiveRecords, clients: Sequence[str]) -> Tables:
    """Convert a live run's records to tables like a simulation's tables.

    The service log is computed from the requests. Without a reported admission time, a request
    counts as admitted at its first token. If the server never reports cached tokens, all input
    counts as computed (uncached). If the server reports cached tokens for some requests only, the
    computed input of the remaining requests is set to 0. Raises DataError for a client that is not
    in ``clients``.
    """
    rows = sorted(records.requests, key=lambda record: record.request_id)
    columns = _arrays(rows, RequestRecord, clients)
    # The stored table of requests has no column for the time at which a request was sent.
    del columns["submit_s"]
    if not columns["estimated"].any():
        del columns["estimated"]
    answered = columns["finish_s"] == columns["finish_s"]
    if np.isnan(columns["compulsory_tokens"][answered]).any():
        del columns["compulsory_tokens"]
    else:
        columns["compulsory_tokens"] = np.nan_to_num(columns["compulsory_tokens"])
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
        Programs.from_columns(_arrays(programs, ProgramRecord, clients)),
        service_of(requests, last_s),
    )


_Record = TypeVar("_Record", RequestRecord, ProgramRecord)


def _arrays(
    records: Iterable[Any], kind: type[msgspec.Struct], clients: Sequence[str]
) -> dict[str, Any]:
    """Return the fields of records as arrays; None becomes NaN, and names become indices."""
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
            f"unknown {what} {error} in the server's records: choose from {', '.join(names)}"
        ) from None


def _read_file(path: Path, kind: type[_Record]) -> list[_Record]:
    decode = msgspec.json.Decoder(kind).decode
    records = []
    for number, line in lines(path, f"{path}", blank=True, streamed=True):
        if not line.endswith(b"\n"):
            break  # The driver was killed while it wrote this line.
        try:
            records.append(decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: cannot be read: {error}") from None
    return records


class Journal:
    """A writer of two files of JSON lines: requests and programs.

    Each record is written to its file without buffering.

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
        """Append the record of a request.

        Raises RunFailed if the record cannot be written, for example on a full disk.
        """
        self._write_line(self._requests, record)

    def program(self, record: ProgramRecord) -> None:
        """Append the record of a program. Raises RunFailed if the record cannot be written."""
        self._write_line(self._programs, record)

    def _write_line(self, file: FileIO, record: msgspec.Struct) -> None:
        try:
            file.write(self._encode(record) + b"\n")
        except OSError as error:
            raise RunFailed(f"{file.name!s}: cannot be written: {error.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.close()
        self._programs.close()


ROUNDS = 20
CLOCK_FILE = "clock.json"
FOLDER = "driver-{number}"
TIMES = ("arrival_s", "submit_s", "admitted_s", "first_token_s", "finish_s")


class Offset(msgspec.Struct, frozen=True):
    """The offset of a driver's clock from this machine's clock, in seconds.

    A positive offset means that the driver's clock is ahead. ``offset_s`` is wrong by at most
    ``uncertainty_s`` seconds. ``at_s`` is the time of the measurement on this machine's clock, in
    seconds.
    """

    at_s: float
    offset_s: float
    uncertainty_s: float


def compare_clocks(
    ask: Callable[[], float], now_s: Callable[[], float], rounds: int = ROUNDS
) -> Offset:
    """Measure by how many seconds another process's clock is ahead of the clock ``now_s``.

    ``ask`` returns the other clock's time, assumed to be read midway between question and answer.
    The offset is wrong by at most half of the round-trip time (Cristian, "Probabilistic clock
    synchronization", 1989). Of all measured offsets, the offset with the shortest round trip is
    returned.
    """
    readings = []
    for _ in range(rounds):
        asked_s, read_s, heard_s = now_s(), ask(), now_s()
        middle_s = (asked_s + heard_s) / 2
        readings.append(Offset(middle_s, read_s - middle_s, (heard_s - asked_s) / 2))
    return min(readings, key=lambda reading: reading.uncertainty_s)


class ClockComparison(msgspec.Struct, frozen=True):
    """A comparison of a driver's clock with this machine's clock, before and after a run.

    ``after`` is None if the driver's clock was not read after the run. ``host`` names the machine
    of the driver; None means this machine.
    """

    before: Offset
    after: Offset | None = None
    host: str | None = None

    @property
    def drift_s(self) -> float:
        """The change (s) of the clock offset during a run; 0 if it is below the uncertainty."""
        if self.after is None:
            return 0.0
        drift_s = self.after.offset_s - self.before.offset_s
        unsure_s = self.after.uncertainty_s + self.before.uncertainty_s
        return drift_s if abs(drift_s) > unsure_s else 0.0

    @property
    def uncertainty_s(self) -> float:
        """The uncertainty (s) of a driver's times after correction for the clock offset."""
        after = self.before if self.after is None else self.after
        return max(self.before.uncertainty_s, after.uncertainty_s)

    def ahead_s(self, since_s: float) -> float:
        """Return the clock's drift (s) in ``since_s`` seconds after the measurement ``before``."""
        if self.after is None or self.after.at_s <= self.before.at_s:
            return 0.0
        return self.drift_s * since_s / (self.after.at_s - self.before.at_s)


class Shard(NamedTuple):
    """The clients of driver ``number``: every ``drivers``-th client."""

    number: int = 0
    drivers: int = 1

    def clients_of(self, clients: Sequence[Any]) -> Sequence[Any]:
        return clients[self.number :: self.drivers]


WHOLE = Shard()


def write_clock(folder: Path, comparison: ClockComparison) -> None:
    """Store a driver's clock comparison in the driver's folder."""
    hidden = folder / f".{CLOCK_FILE}"
    hidden.write_bytes(msgspec.json.encode(comparison) + b"\n")
    hidden.replace(folder / CLOCK_FILE)


def clocks(folder: Path) -> list[ClockComparison]:
    """Return the clock comparisons of all load drivers, in the drivers' order.

    A run with a single driver has no clock comparison. Raises DataError if a stored clock
    comparison is invalid.
    """
    found: list[ClockComparison] = []
    while (path := folder / FOLDER.format(number=len(found)) / CLOCK_FILE).exists():
        try:
            found.append(msgspec.convert(json_file(path, f"{path}"), ClockComparison))
        except msgspec.ValidationError as error:
            raise DataError(f"{path}: {error}") from None
    return found


def merge(folder: Path, time_scale: float) -> None:
    """Merge the records of several drivers into ``folder``, with times on this machine's clock.

    ``time_scale`` is the number of emulated seconds per real second. Calling ``merge`` twice gives
    the same files.
    """
    found = clocks(folder)
    if not found:
        return
    with Journal(folder) as journal:
        for number, clock in enumerate(found):
            records = read_records(folder / FOLDER.format(number=number))
            for request in records.requests:
                journal.request(corrected(request, clock, time_scale))
            for program in records.programs:
                journal.program(corrected(program, clock, time_scale))


def corrected(record: _Record, clock: ClockComparison, time_scale: float) -> _Record:
    """Return the record with its times on this machine's clock, corrected for clock drift."""
    if not clock.drift_s:
        return record

    def ours(time_s: float) -> float:
        return time_s - clock.ahead_s(time_s / time_scale) * time_scale

    times = {name: getattr(record, name, None) for name in TIMES}
    changed: dict[str, Any] = {name: ours(at_s) for name, at_s in times.items() if at_s is not None}
    if isinstance(record, RequestRecord):
        changed["chunk_s"] = [ours(at_s) for at_s in record.chunk_s]
    return msgspec.structs.replace(record, **changed)


def driver_entries(folder: Path) -> list[dict[str, float | str]]:
    """Return each driver's entry in the run's manifest: its host, if remote, and its clock."""
    return [
        {
            **({} if clock.host is None else {"host": clock.host}),
            "offset_s": clock.before.offset_s,
            "uncertainty_s": clock.uncertainty_s,
            "drift_s": clock.drift_s,
        }
        for clock in clocks(folder)
    ]
