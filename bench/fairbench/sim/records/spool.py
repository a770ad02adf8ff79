"""The logs of a simulation on disk while it runs: they take no memory, and outlive the process.

Each log is an Arrow IPC stream, to which blocks of rows are appended. A truncated file can be read
up to its end.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fairbench.errors import DataError, RunFailed
from fairbench.metrics.records import STATUS_NAMES
from fairbench.metrics.tables import to_arrow, to_numpy
from fairbench.sim.records.columns import Columns

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "records"  # a folder in the run's directory
MAX_PS = 2**62
MAX_COUNT = 2**53
COUNTS = ("steps", "batch_size", "depth", "retractions", "requests", "demand_requests")
MAX_WORKER = 2**20


@contextmanager
def spooled(logs: Mapping[str, Columns], folder: Path) -> Iterator[None]:
    """Store the rows of these empty logs in files in ``folder`` inside the block.

    Once one log has a full block, all logs are filed, so the files show the same instant. At the
    end of the block every row is on disk, also after an interruption. Raises RunFailed if they
    cannot be written.
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


def restore(logs: Mapping[str, Columns], folder: Path, clients: int) -> None:
    """Fill empty logs from a simulation's ``folder``, even if it was killed.

    All logs get the same number of blocks: those that were filed together. Raises DataError if a
    file cannot be read.
    """
    found = {name: _batches(_path(folder, name)) for name in logs}
    for filed in zip(*found.values(), strict=False):
        for (name, log), batch in zip(logs.items(), filed, strict=True):
            log.add_block(_rows(batch, log, f"{_path(folder, name)}", clients))


def _rows(batch: pa.RecordBatch, log: Columns, where: str, clients: int) -> NDArray[np.int64]:
    """Return the rows of a batch. Raises DataError if they do not belong to this log."""
    import pyarrow as pa

    if not batch.schema.equals(_schema(log.names)):
        raise DataError(f"{where}: the file is damaged: its columns differ from those of the log")
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
    """Return the minimum and maximum of a column; -1 means never, or nowhere yet."""
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
    """``Blocks`` in a fresh file. A block is stored for good once ``add`` returns."""

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
        """Read the rows sequentially and yield ``count`` blocks at a time."""
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
        """Do nothing: blocks in a file take no memory."""

    def _append(self, message: pa.Buffer) -> None:
        try:
            with self._path.open("ab") as file:
                file.write(message)
        except OSError as error:
            with suppress(OSError):  # half a message would make the following ones unreadable
                os.truncate(self._path, self._bytes)
            raise RunFailed(f"{self._path}: cannot be written: {error.strerror}") from None
        self._bytes += message.size


def _schema(names: tuple[str, ...]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(name, pa.int64()) for name in names])


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.arrows"


def _batches(path: Path) -> list[pa.RecordBatch]:
    """Return the whole batches of a file, mapped and not read; none without a file."""
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
        # the end of the file, or where it was cut off
        with suppress(StopIteration, OSError, pa.ArrowInvalid):
            while True:
                batches.append(reader.read_next_batch())
    except (pa.ArrowException, MemoryError) as error:
        raise _damaged(path, error) from None
    return batches


def _lacks_head(data: mmap.mmap) -> bool:
    """Return whether a stream was cut off before the names of its columns.

    A stream begins with a mark, the length of the column description, and the description (Arrow
    columnar format, "IPC streaming format"). Data without the mark is not such a stream, and Arrow
    reports the error.
    """
    length = int.from_bytes(data[4:8], "little") if len(data) >= 8 else 0
    return b"\xff\xff\xff\xff".startswith(data[:4]) and len(data) < 8 + max(1, length)


def _damaged(path: Path, error: BaseException) -> DataError:
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return DataError(f"{path}: the file is damaged: {reason}")
