"""The logs of a simulation on disk while it runs: they take no memory, and outlive the process.

Each is an Arrow IPC stream, to which blocks of rows are appended. One that was cut off can be read
up to there.
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
from fairbench.metrics.arrow import to_arrow, to_numpy
from fairbench.sim.records.columns import Columns

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "records"  # of the run's directory


@contextmanager
def spooled(logs: Mapping[str, Columns], folder: Path) -> Iterator[None]:
    """Inside, the rows of these logs, empty so far, go to files in ``folder``.

    Once one has a full block all file what they have, so that what is on disk is of one instant.
    However it ends, every row is on disk then. Raises RunFailed if they cannot be written.
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


def restore(logs: Mapping[str, Columns], folder: Path) -> None:
    """Fill empty logs with what a simulation has left in ``folder``, even if it was killed.

    All get equally many blocks: those that were filed together. Raises DataError if a file cannot
    be read.
    """
    found = {name: _batches(_path(folder, name)) for name in logs}
    for filed in zip(*found.values(), strict=False):
        for log, batch in zip(logs.values(), filed, strict=True):
            log.add_block(np.column_stack([to_numpy(column) for column in batch.columns]))


class FileBlocks:
    """``Blocks`` in a fresh file. Each is there to stay once ``add`` returns."""

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        import pyarrow as pa

        self._path = path
        self._schema = pa.schema([(name, pa.int64()) for name in names])
        self._bytes = 0
        self._append(self._schema.serialize())

    def add(self, rows: NDArray[np.int64]) -> None:
        import pyarrow as pa

        columns = [to_arrow(values) for values in rows.T]
        self._append(pa.record_batch(columns, schema=self._schema).serialize())

    def column(self, number: int) -> NDArray[np.int64]:
        parts = [to_numpy(batch.column(number)) for batch in _batches(self._path)]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def release(self) -> None:
        """They take none."""

    def _append(self, message: pa.Buffer) -> None:
        try:
            with self._path.open("ab") as file:
                file.write(message)
        except OSError as error:
            with suppress(OSError):  # half a message would spoil those after it
                os.truncate(self._path, self._bytes)
            raise RunFailed(f"{self._path}: cannot be written: {error.strerror}") from None
        self._bytes += message.size


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.arrows"


def _batches(path: Path) -> list[pa.RecordBatch]:
    """The whole batches of a file, mapped and not read; none if there is no file."""
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
    batches = []
    with suppress(StopIteration, OSError, pa.ArrowInvalid):  # its end, or where it was cut off
        reader = pa.ipc.open_stream(pa.py_buffer(mapped))
        while True:
            batches.append(reader.read_next_batch())
    return batches
