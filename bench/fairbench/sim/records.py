"""The records of a simulation: log files during the run, and tables after the run.

Each log is a file with an Arrow IPC stream, to which blocks of rows are appended. Log files take no
memory, and remain readable if the process is killed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbench.core import PS_PER_S
from fairbench.engine.logs import IntegerTable
from fairbench.engine.sequence import NEVER
from fairbench.errors import DataError, RunFailed
from fairbench.metrics.arrays import is_long
from fairbench.metrics.records import STATUS_NAMES, Floats, Ints, Programs, Requests, Service
from fairbench.metrics.tables import FiledService, Memory, ServiceRows, Tables, to_arrow, to_numpy

if TYPE_CHECKING:
    import pyarrow as pa


FOLDER = "records"
MAX_PS = 2**62
MAX_COUNT = 2**53
COUNTS = ("steps", "batch_size", "depth", "retractions", "requests", "demand_requests")
MAX_WORKER = 2**20


@contextmanager
def spooled(logs: Mapping[str, IntegerTable], folder: Path) -> Iterator[None]:
    """Write the rows that are added to ``logs`` during the ``with`` block to files in ``folder``.

    When a block of any log is full, the current blocks of all logs are written, so that all files
    end at the same simulated time. After the ``with`` block, every row is on disk, even after an
    interruption. Precondition: ``logs`` are empty. Raises RunFailed if a file cannot be written.
    """

    def file_blocks() -> None:
        for log in logs.values():
            log.file_block()

    for name, log in logs.items():
        log.blocks = FileBlocks(_path(folder, name), log.names)
        log.on_full = file_blocks
    try:
        yield
    finally:
        file_blocks()


def restore(logs: Mapping[str, IntegerTable], folder: Path, clients: int) -> None:
    """Fill empty logs with the rows that a simulation stored in ``folder``.

    If the simulation was killed, the last rows are dropped unless all logs contain them. Raises
    DataError if a file cannot be read.
    """
    found = {name: _batches(_path(folder, name)) for name in logs}
    for filed in zip(*found.values(), strict=False):
        for (name, log), batch in zip(logs.items(), filed, strict=True):
            log.add_block(_rows(batch, log, f"{_path(folder, name)}", clients))


def _rows(batch: pa.RecordBatch, log: IntegerTable, where: str, clients: int) -> NDArray[np.int64]:
    """Return the rows of an Arrow record batch as an array of integers.

    Raises DataError if the batch's columns or values do not match the log.
    """
    import pyarrow as pa

    if not batch.schema.equals(_schema(log.names)):
        raise DataError(f"{where}: the file is damaged: its columns are not the expected columns")
    try:
        batch.validate(full=True)
    except pa.ArrowException:
        raise DataError(
            f"{where}: the file is damaged: its columns have different lengths"
        ) from None
    if any(column.null_count or column.buffers()[1].size % 8 for column in batch.columns):
        raise DataError(f"{where}: the file is damaged: a value is missing")
    rows = np.column_stack([to_numpy(column) for column in batch.columns])
    for name, values in zip(log.names, rows.T, strict=True):
        least, most = _range(name, clients)
        if len(values) and not (least <= values.min() and values.max() <= most):
            raise DataError(f"{where}: the file is damaged: {name} is out of range")
    return rows


def _range(name: str, clients: int) -> tuple[int, int]:
    """Return the range of valid values of a column; -1 stands for no time or no worker."""
    if name == "client":
        return 0, clients - 1
    if name == "status":
        return 0, len(STATUS_NAMES) - 1
    if name == "worker":
        return -1, MAX_WORKER
    if name.endswith("_tokens") or name in COUNTS:
        return 0, MAX_COUNT
    return (-MAX_PS, MAX_PS) if name.endswith("_ps") else (-(2**63), 2**63 - 1)


class FileBlocks:
    """A ``BlockStore`` that writes its blocks to a new file.

    When ``add`` returns, the added block of records is on disk.
    """

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        self._path = path
        self._schema = _schema(names)
        self._bytes = 0
        self._append(self._schema.serialize())

    def add(self, rows: NDArray[np.int64]) -> None:
        import pyarrow as pa

        columns = [to_arrow(values) for values in rows.T]
        self._append(pa.record_batch(columns, schema=self._schema).serialize())

    def column(self, number: int) -> NDArray[np.int64]:
        parts = [to_numpy(batch.column(number)) for batch in _batches(self._path)]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    @property
    def folder(self) -> Path:
        return self._path.parent

    def groups(self, count: int) -> Iterator[NDArray[np.int64]]:
        """Yield the rows in order, in arrays of up to ``count`` record batches."""
        import pyarrow as pa

        group = []
        with self._path.open("rb") as file, pa.ipc.open_stream(file) as reader:
            for batch in reader:
                group.append(np.column_stack([to_numpy(column) for column in batch.columns]))
                if len(group) == count:
                    yield np.concatenate(group)
                    group = []
        if group:
            yield np.concatenate(group)

    def release(self) -> None:
        """Do nothing, because rows in a file take no memory."""

    def _append(self, message: pa.Buffer) -> None:
        try:
            with self._path.open("ab") as file:
                file.write(message)
        except OSError as error:
            # A partly written message would make all later messages of the file unreadable.
            with suppress(OSError):
                os.truncate(self._path, self._bytes)
            raise RunFailed(f"{self._path}: cannot be written: {error.strerror}") from None
        self._bytes += message.size


def _schema(names: tuple[str, ...]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(name, pa.int64()) for name in names])


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.arrows"


def _batches(path: Path) -> list[pa.RecordBatch]:
    """Return the complete batches of a memory-mapped file, or no batch if the file is missing."""
    import pyarrow as pa

    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return []
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    if _lacks_head(mapped):
        return []
    batches = []
    try:
        reader = pa.ipc.open_stream(pa.py_buffer(mapped))
    except (pa.ArrowException, OSError, MemoryError, StopIteration) as error:
        raise _damaged(path, error) from None
    try:
        # At the end of the file, the reader raises an error, even if the file is complete.
        with suppress(StopIteration, OSError, pa.ArrowInvalid):
            while True:
                batches.append(reader.read_next_batch())
    except (pa.ArrowException, MemoryError) as error:
        raise _damaged(path, error) from None
    return batches


def _lacks_head(data: mmap.mmap) -> bool:
    """Return whether an Arrow stream ends inside its header, which contains the schema.

    The header is four bytes 0xFF, the length of a schema, and the schema (Arrow columnar format,
    "IPC streaming format"). Return False for data that begin with other bytes, because Arrow
    rejects them.
    """
    length = int.from_bytes(data[4:8], "little") if len(data) >= 8 else 0
    return b"\xff\xff\xff\xff".startswith(data[:4]) and len(data) < 8 + max(1, length)


def _damaged(path: Path, error: BaseException) -> DataError:
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return DataError(f"{path}: the file is damaged: {reason}")


def seconds(times_ps: Ints) -> Floats:
    """Return times in seconds, with NaN for events that did not occur."""
    found: Floats = times_ps / PS_PER_S
    found[times_ps == NEVER] = np.nan
    return found


AT_ONCE = 16


def filed_service(log: IntegerTable, blocks: FileBlocks) -> FiledService:
    """Sort the rows of a service log by start and worker, and return them in new files.

    The rows in ``blocks`` are sorted by end time, so they are nearly sorted by start time. A row
    stays in memory until all unread rows start later than this row. The sorted rows are stored in
    the folder of ``blocks``.
    """
    start = log.names.index("start_ps")
    least = np.array([rows[:, start].min(initial=2**62) for rows in blocks.groups(AT_ONCE)])
    after = np.append(np.minimum.accumulate(least[::-1])[::-1][1:], 2**62) / PS_PER_S
    kept = np.empty((0, len(log.names)), np.int64)
    types = FiledService.column_types()
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(FiledService.path(blocks.folder, name).open("wb"))
            for name in types
        }
        for rows, yet_s in zip(blocks.groups(AT_ONCE), after, strict=True):
            kept = np.concatenate([kept, rows])
            start_s = kept[:, start] / PS_PER_S
            now = start_s < yet_s
            out = kept[now]
            out = out[np.lexsort((out[:, log.names.index("worker")], start_s[now]))]
            for name, file in files.items():
                _column(out, log.names, name).astype(types[name]).tofile(file)
            kept = kept[~now]
    return FiledService(blocks.folder, len(log))


def _column(rows: NDArray[np.int64], names: tuple[str, ...], name: str) -> NDArray[np.generic]:
    if name in names:
        return rows[:, names.index(name)]
    return seconds(rows[:, names.index(name.removesuffix("_s") + "_ps")])


class Logs(NamedTuple):
    """The logs of a simulation; the fields' names are also the names of the logs' files."""

    requests: IntegerTable
    programs: IntegerTable
    service: IntegerTable
    memory: IntegerTable | None = None

    def by_name(self) -> dict[str, IntegerTable]:
        return {name: log for name, log in self._asdict().items() if log is not None}


def tables_of(clients: list[str], logs: Logs) -> Tables:
    """Return the tables of a cluster that has finished its run.

    Requests and programs are in order of their ids, and service rows are in order of start and
    worker. To save memory, ``logs`` are released and cannot be read after this call.
    """
    for log in logs.by_name().values():
        log.file_block()
    requests, programs, service, memory = logs
    by_request = np.argsort(requests.column("request_id"))
    by_program = np.argsort(programs.column("program_id"))
    return Tables(
        clients,
        Requests.from_columns(_arrays(requests, by_request)),
        Programs.from_columns(_arrays(programs, by_program)),
        _service(service),
        None if memory is None else Memory.from_columns(_arrays(memory, None)),
    )


def _service(log: IntegerTable) -> ServiceRows:
    """Return the service table; the rows of a long log that is in a file stay on disk."""
    if isinstance(log.blocks, FileBlocks) and is_long(len(log)):
        return filed_service(log, log.blocks)
    # The log's rows are sorted by their end times.
    start_s, worker = seconds(log.column("start_ps")), log.column("worker")
    sorted_already = (start_s[1:] >= start_s[:-1]).all() and (worker == worker[:1]).all()
    by_start = None if sorted_already else np.lexsort((worker, start_s))
    return Service.from_columns(_arrays(log, by_start))


def _arrays(log: IntegerTable, order: Ints | None) -> dict[str, Any]:
    """Return the columns of a log, and free the log's memory.

    Times in picoseconds are converted to seconds. ``order`` is the new order of the rows, or None
    to keep the log's order.
    """
    arrays: dict[str, Any] = {}
    for name in log.names:
        values = log.column(name)
        values = values if order is None else values[order]
        if name.endswith("_ps"):
            arrays[name.removesuffix("_ps") + "_s"] = seconds(values)
        else:
            arrays[name] = values
    log.release()
    return arrays
