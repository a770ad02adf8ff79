"""The tables of a stored run, as metrics take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fairbench.errors import DataError
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
from fairbench.metrics.tables import Tables
from fairbench.results.store import StoredRun

if TYPE_CHECKING:
    import pyarrow as pa

SomeTable = TypeVar("SomeTable", bound=Table)
STATES = dict(zip(STATUS_NAMES, (FINISHED, REFUSED, UNFINISHED), strict=True))


def read_tables(run: StoredRun) -> Tables:
    """The tables of a run. Raises DataError if one cannot be read, or is not of this run."""
    return Tables(
        [row["client"] for row in run.summary["clients"]],
        _table(run, "requests", Requests),
        _table(run, "programs", Programs),
        read_service(run),
    )


def read_service(run: StoredRun) -> Service:
    """Only the service log. Raises as ``read_tables`` does."""
    return _table(run, "service", Service)


def _table(run: StoredRun, name: str, kind: type[SomeTable]) -> SomeTable:
    clients = {row["client"]: number for number, row in enumerate(run.summary["clients"])}
    codes = {"client": clients, "status": STATES}
    return kind.from_columns(_columns(run.table(name), codes, str(run.path)))


def _columns(table: pa.Table, codes: dict[str, dict[str, int]], where: str) -> dict[str, Any]:
    """Numpy columns, names of clients and states as numbers."""
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
            raise DataError(f"{where}: {name} {error} is not in its summary") from None
        columns[name] = np.array(numbers, np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]
    return columns
