"""The tables of a run, in memory or in files, and the columns of stored tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fairbench.metrics.arrays import part_bounds
from fairbench.metrics.records import (
    REFUSED,
    STATUS_NAMES,
    Floats,
    Ints,
    Programs,
    Requests,
    Service,
    Table,
)

if TYPE_CHECKING:
    import pyarrow as pa


COLUMN_BYTES = 8  # Each value in a column's file has this number of bytes.


class ServiceRows(Protocol):
    """The service log of a run, in memory or in files."""

    def __len__(self) -> int: ...

    def parts(self) -> Iterator[Service]:
        """Yield the log in consecutive parts; rows that start at one instant stay together."""
        ...

    def between(self, first: int, after: int) -> Service:
        """Return the rows ``first`` to ``after - 1``; ``first`` must be less than ``after``."""
        ...


@dataclass(frozen=True, slots=True)
class FiledService:
    """A service log of ``rows`` rows in order of time, with a file for each column in ``folder``.

    The files are mapped into memory instead of read, so that unused parts need no memory.
    """

    folder: Path
    rows: int

    def __len__(self) -> int:
        return self.rows

    def parts(self) -> Iterator[Service]:
        """Yield consecutive parts of the log, with the same bounds as ``Service.parts``."""
        for first, after in pairwise(part_bounds(self._column("start_s", 0, self.rows))):
            yield self.between(first, after)

    def between(self, first: int, after: int) -> Service:
        """Return the rows ``first`` to ``after - 1``; ``first`` must be less than ``after``."""
        columns = self.column_types()
        return Service(**{name: self._column(name, first, after) for name in columns})

    @staticmethod
    def column_types() -> Mapping[str, type]:
        """Return the numpy type of each stored column, by name."""
        return {
            one.name: np.int64 if str(one.type).startswith("Ints") else np.float64
            for one in fields(Service)
        }

    @staticmethod
    def path(folder: Path, column: str) -> Path:
        """Return the path of the file that holds a column."""
        return folder / f"service.{column}"

    def _column(self, name: str, first: int, after: int) -> Any:
        return np.asarray(
            np.memmap(
                self.path(self.folder, name),
                dtype=self.column_types()[name],
                mode="r",
                offset=COLUMN_BYTES * first,
                shape=(after - first,),
            )
        )


def to_arrow(values: NDArray[Any]) -> pa.Array:
    """Return numbers as an Arrow array without nulls; a contiguous array is not copied.

    pyarrow's own conversions would import pandas, if installed, and take 45 MiB of memory.
    """
    import pyarrow as pa

    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def to_numpy(numbers: pa.Array) -> NDArray[np.int64]:
    """Return an Arrow array of 64-bit integers without nulls as a numpy array, without a copy."""
    values = np.frombuffer(numbers.buffers()[1], np.int64)
    return values[numbers.offset : numbers.offset + len(numbers)]


def named(codes: NDArray[Any], names: Sequence[str]) -> pa.DictionaryArray:
    """Return indices into ``names`` as an Arrow column of the names."""
    import pyarrow as pa

    texts = [name.encode() for name in names]
    ends = np.array([0, *accumulate(map(len, texts))], np.int32)
    dictionary = pa.StringArray.from_buffers(
        len(names), pa.py_buffer(ends), pa.py_buffer(b"".join(texts))
    )
    return pa.DictionaryArray.from_arrays(to_arrow(codes.astype(np.int32)), dictionary)


NOBODY = -1  # ``Memory.by`` has this value if no client's requests caused the change.


@dataclass(frozen=True, slots=True, eq=False)
class Memory(Table):
    """A table of KV memory, with a row for each change in the number of tokens a client holds.

    - ``at_s`` is the time, in seconds, at which the memory of worker ``worker`` changes.
    - ``change`` is the number of tokens that ``client`` gains, negative if the client loses tokens.
    - ``holders`` is the number of clients that hold these tokens; a token counts as 1 / ``holders``
      for each of these clients.
    - ``by`` is the client whose requests evicted the tokens, or ``NOBODY``.
    """

    at_s: Floats
    worker: Ints
    client: Ints
    holders: Ints
    change: Ints
    by: Ints


class SavedColumns(NamedTuple):
    """The columns of each table as files store them, with names instead of client indices."""

    requests: dict[str, Any]
    programs: dict[str, Any]
    service: Mapping[str, Any]
    memory: dict[str, Any] | None


class FiledColumns(Mapping[str, Any]):
    """The columns of a service log, by name; a column is read from its file when it is used."""

    def __init__(self, log: FiledService, saved: Callable[[Table], dict[str, Any]]) -> None:
        self._log, self._saved = log, saved

    def __getitem__(self, name: str) -> Any:
        return self._saved(self._log.between(0, len(self._log)))[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._log.column_types())

    def __len__(self) -> int:
        return len(self._log.column_types())

    def parts(self, rows: int) -> Iterator[dict[str, Any]]:
        """Yield the columns in parts of at most ``rows`` rows."""
        for first in range(0, len(self._log), rows):
            yield self._saved(self._log.between(first, min(first + rows, len(self._log))))


@dataclass(frozen=True, slots=True)
class Tables:
    """The requests, the programs and the service log of a run.

    The columns ``client`` of all tables are indices into ``clients``. ``memory`` is None unless the
    run recorded the holders of KV memory.
    """

    clients: list[str]
    requests: Requests
    programs: Programs
    service: ServiceRows
    memory: Memory | None = None

    def all_refused(self) -> bool:
        """Return whether the run had requests and all of them were refused."""
        status = self.requests.status
        return len(status) > 0 and bool((status == REFUSED).all())

    def columns(self) -> SavedColumns:
        """Return the columns of all tables in the form in which they are saved to files."""
        log = self.service
        assert isinstance(log, Service | FiledService)
        return SavedColumns(
            self._saved(self.requests),
            self._saved(self.programs),
            FiledColumns(log, self._saved) if isinstance(log, FiledService) else self._saved(log),
            None if self.memory is None else self._saved(self.memory),
        )

    def _saved(self, table: Table) -> dict[str, Any]:
        """Return the columns of a table, with names of clients and statuses instead of codes."""
        columns: dict[str, Any] = dict(table.to_columns())
        columns["client"] = named(columns["client"], self.clients)
        if "status" in columns:
            columns["status"] = named(columns["status"], STATUS_NAMES)
        if "by" in columns:
            columns["by"] = named(columns["by"] + 1, ["", *self.clients])
        return columns


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run: its tables, as columns by name, and its summary.

    - ``complete`` is false if the run was interrupted.
    - ``memory`` is the table of the clients that hold KV memory; None if the run did not record it.
    - ``about`` holds further facts about the run, which its manifest stores.
    """

    requests: dict[str, Any]
    programs: dict[str, Any]
    service: Mapping[str, Any]
    summary: dict[str, Any]
    complete: bool
    memory: dict[str, Any] | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def tables(self) -> dict[str, Mapping[str, Any]]:
        """Return a dictionary of the tables, keyed by the name of the file of each table."""
        tables = {"requests": self.requests, "programs": self.programs, "service": self.service}
        return tables if self.memory is None else {**tables, "memory": self.memory}
