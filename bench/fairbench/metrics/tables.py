"""The tables of a run, for every kind of run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
from fairbench.metrics.service_log import FiledService, ServiceLog

if TYPE_CHECKING:
    import pyarrow as pa


def to_arrow(values: NDArray[Any]) -> pa.Array:
    """Return numbers as an Arrow array without nulls; contiguous arrays are not copied."""
    import pyarrow as pa

    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def to_numpy(numbers: pa.Array) -> NDArray[np.int64]:
    """Return 64-bit integers without nulls as numpy, without a copy."""
    values = np.frombuffer(numbers.buffers()[1], np.int64)
    return values[numbers.offset : numbers.offset + len(numbers)]


def named(codes: NDArray[Any], names: Sequence[str]) -> pa.DictionaryArray:
    """Return indices into ``names`` as a column of names."""
    import pyarrow as pa

    texts = [name.encode() for name in names]
    ends = np.array([0, *accumulate(map(len, texts))], np.int32)
    dictionary = pa.StringArray.from_buffers(
        len(names), pa.py_buffer(ends), pa.py_buffer(b"".join(texts))
    )
    return pa.DictionaryArray.from_arrays(to_arrow(codes.astype(np.int32)), dictionary)


NOBODY = -1


@dataclass(frozen=True, slots=True, eq=False)
class Memory(Table):
    """A row per change: ``client`` holds ``change`` more tokens, shared with others.

    ``holders`` is the number of clients that hold each of the tokens. A token counts 1 /
    ``holders`` for the client. ``by`` is the client for whose requests the tokens were evicted,
    -1 for none.
    """

    at_s: Floats
    worker: Ints
    client: Ints
    holders: Ints
    change: Ints
    by: Ints


class SavedColumns(NamedTuple):
    """The columns of each table in their saved form: clients and states by name."""

    requests: dict[str, Any]
    programs: dict[str, Any]
    service: Mapping[str, Any]
    memory: dict[str, Any] | None


class FiledColumns(Mapping[str, Any]):
    """The saved columns of a log in files, read completely only by name."""

    def __init__(self, log: FiledService, saved: Callable[[Table], dict[str, Any]]) -> None:
        self._log, self._saved = log, saved

    def __getitem__(self, name: str) -> Any:
        return self._saved(self._log.between(0, len(self._log)))[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._log.column_types())

    def __len__(self) -> int:
        return len(self._log.column_types())

    def parts(self, rows: int) -> Iterator[dict[str, Any]]:
        """Yield the columns in parts of ``rows`` rows."""
        for first in range(0, len(self._log), rows):
            yield self._saved(self._log.between(first, min(first + rows, len(self._log))))


@dataclass(frozen=True, slots=True)
class Tables:
    """Requests, programs and service log of a run; clients are indices into ``clients``.

    ``memory`` is only of runs that recorded who holds KV memory.
    """

    clients: list[str]
    requests: Requests
    programs: Programs
    service: ServiceLog
    memory: Memory | None = None

    def all_refused(self) -> bool:
        """Return whether there were requests and all were refused."""
        status = self.requests.status
        return len(status) > 0 and bool((status == REFUSED).all())

    def columns(self) -> SavedColumns:
        """Return the columns of the tables that are saved."""
        return SavedColumns(
            self._saved(self.requests),
            self._saved(self.programs),
            self._saved_service(),
            None if self.memory is None else self._saved(self.memory),
        )

    def _saved_service(self) -> Mapping[str, Any]:
        log = self.service
        if isinstance(log, FiledService):
            return FiledColumns(log, self._saved)
        assert isinstance(log, Service)
        return self._saved(log)

    def _saved(self, table: Table) -> dict[str, Any]:
        columns: dict[str, Any] = dict(table.to_columns())
        columns["client"] = named(columns["client"], self.clients)
        if "status" in columns:
            columns["status"] = named(columns["status"], STATUS_NAMES)
        if "by" in columns:
            columns["by"] = named(columns["by"] + 1, ["", *self.clients])
        return columns
