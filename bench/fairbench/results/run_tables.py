"""The tables of a stored run, as metrics take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbench.errors import DataError
from fairbench.metrics.records import (
    FINISHED,
    REFUSED,
    UNFINISHED,
    Client,
    Facts,
    Programs,
    Requests,
    ServiceLog,
    Table,
    Window,
)
from fairbench.results.store import StoredRun

if TYPE_CHECKING:
    import pyarrow as pa

STATES = {"finished": FINISHED, "refused": REFUSED, "unfinished": UNFINISHED}


@dataclass(frozen=True, slots=True)
class RunTables:
    """The three tables of a run; clients are indices into those of its summary."""

    requests: Requests
    programs: Programs
    service: ServiceLog


def read_tables(run: StoredRun) -> RunTables:
    """The tables of a run. Raises DataError if one cannot be read, or is not of this run."""
    clients = {row["client"]: number for number, row in enumerate(run.summary["clients"])}

    def made(name: str, kind: type[Table]) -> Any:
        columns = _columns(run.table(name), {"client": clients, "status": STATES}, str(run.path))
        return kind.from_columns(columns)

    return RunTables(
        made("requests", Requests), made("programs", Programs), made("service", ServiceLog)
    )


def stored_facts(run: StoredRun, window: Window) -> Facts:
    """What metrics need to know beside the tables, over any window; without the theorem's bound."""
    summary = run.summary
    return Facts(
        clients=tuple(Client(row["client"], row["misbehaving"]) for row in summary["clients"]),
        window=window,
        horizon_s=summary["duration"],
        workers=summary["dp"],
        pool_tokens=summary["pool_tokens"] or 0,
        latency=summary["latency"],
        bound_workers=summary["dp"],
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
