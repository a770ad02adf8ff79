"""The tables of a stored run, as metrics take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

STATES = dict(zip(STATUS_NAMES, (FINISHED, REFUSED, UNFINISHED), strict=True))


def read_tables(run: StoredRun) -> Tables:
    """The tables of a run. Raises DataError if one cannot be read, or is not of this run."""
    clients = {row["client"]: number for number, row in enumerate(run.summary["clients"])}

    def made(name: str, kind: type[Table]) -> Any:
        columns = _columns(run.table(name), {"client": clients, "status": STATES}, str(run.path))
        return kind.from_columns(columns)

    return Tables(
        list(clients),
        made("requests", Requests),
        made("programs", Programs),
        made("service", Service),
    )


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
