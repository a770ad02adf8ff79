"""The stored tables of a run, in the form that metrics take."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fairbench.errors import DataError
from fairbench.files.times import MAX_TIME_S
from fairbench.metrics.records import (
    FINISHED,
    REFUSED,
    STATUS_NAMES,
    UNFINISHED,
    Programs,
    Requests,
    Service,
    Table,
)
from fairbench.metrics.tables import NOBODY, Memory, Tables
from fairbench.results.store import StoredRun

if TYPE_CHECKING:
    import pyarrow as pa


SomeTable = TypeVar("SomeTable", bound=Table)
MAX_COUNT = 2**53
MAX_WORKER = 2**16 - 1  # metrics read every worker up to the last, even one without a request
RANGES = {  # ranges of columns of integers
    "worker": (-1, MAX_WORKER),
    "by": (NOBODY, MAX_COUNT),
    "change": (-MAX_COUNT, MAX_COUNT),
    "holders": (1, MAX_COUNT),
}
STATES = dict(zip(STATUS_NAMES, (FINISHED, REFUSED, UNFINISHED), strict=True))


def read_tables(run: StoredRun) -> Tables:
    """Return a run's tables. Raises DataError for an unreadable or foreign table."""
    return Tables(
        [row["client"] for row in run.summary["clients"]],
        _table(run, "requests", Requests),
        _table(run, "programs", Programs),
        read_service(run),
        _table(run, "memory", Memory) if run.has_table("memory") else None,
    )


def read_service(run: StoredRun) -> Service:
    """Return the service log without other tables. Raises the errors of ``read_tables``."""
    return _table(run, "service", Service)


def _table(run: StoredRun, name: str, kind: type[SomeTable]) -> SomeTable:
    clients = {row["client"]: number for number, row in enumerate(run.summary["clients"])}
    codes = {"client": clients, "status": STATES, "by": {"": NOBODY, **clients}}
    table, where = run.table(name), f"{run.path / name}.parquet"
    _check_types(table, kind, where)
    made = kind.from_columns(_columns(table, codes, str(run.path)))
    _check_values(made, where)
    return made


def _check_types(table: pa.Table, kind: type[Table], where: str) -> None:
    """Raise DataError unless the columns are complete and can be cast to their types."""
    from pyarrow import types

    for column in fields(kind):
        if table.column_names.count(column.name) > 1:
            raise DataError(f"{where}: column {column.name!r} appears twice")
        if column.name not in table.column_names:
            continue
        values, named = table.column(column.name), column.name in ("client", "status", "by")
        integers, floats = types.is_integer(values.type), types.is_floating(values.type)
        fits = types.is_dictionary(values.type) if named else integers
        if not (fits or (floats and "Floats" in str(column.type))):
            raise DataError(f"{where}: column {column.name!r} cannot be of type {values.type}")
        if values.null_count:
            raise DataError(f"{where}: column {column.name!r}: a value is missing")


def _check_values(table: Table, where: str) -> None:
    for name, values in table.to_columns().items():
        if values.dtype == np.float64:
            wrong = np.isinf(values) | (np.abs(values) > MAX_TIME_S)
        else:
            least, most = RANGES.get(name, (0, MAX_COUNT))
            wrong = (values < least) | (values > most)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(f"{where}, row {row + 1}: {name} = {values[row]}: out of range")


def _columns(table: pa.Table, codes: dict[str, dict[str, int]], where: str) -> dict[str, Any]:
    """Return numpy columns, with names of clients and states as numbers."""
    import pyarrow.compute as pc

    columns: dict[str, Any] = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if name not in codes:
            columns[name] = column.to_numpy(zero_copy_only=False)
            continue
        encoded = column if hasattr(column, "dictionary") else pc.dictionary_encode(column)
        try:
            numbers = [codes[name][value] for value in encoded.dictionary.to_pylist()]
        except KeyError as error:
            raise DataError(
                f"{where}: {name} {error} is missing in the summary of the run"
            ) from None
        columns[name] = np.array(numbers, np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]
    return columns
