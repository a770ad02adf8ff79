"""Tables of requests in memory, written to a file that the commands for logs read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from fairbench.errors import FairbenchError, UsageError

NAME = "data"  # the name of a table in memory, in messages and answers
Data = Any
"""A data frame of pandas (or of another library with Arrow's interface), an Arrow table, a list of
dicts, a dict of columns, or the name of a file."""


@contextmanager
def as_file(data: Data) -> Iterator[str]:
    """Yield the name of a file with the rows of ``data``; errors inside name ``data`` instead.

    The name of a file is yielded unchanged. Raises UsageError for another type, and for a table
    without rows.
    """
    if isinstance(data, str | PathLike):
        yield fspath(data)
        return
    with TemporaryDirectory(prefix="fairbench-") as folder:
        path = Path(folder) / f"{NAME}.jsonl"
        _write(path, _data_rows(data))
        try:
            yield str(path)
        except FairbenchError as error:
            error.args = tuple(shown(str(one), str(path)) for one in error.args)
            raise


def shown(text: str, file: str) -> str:
    """Return a message with the rows of ``data`` in place of the lines of the temporary file."""
    if not Path(file).name.startswith(NAME):
        return text
    return re.sub(rf"{re.escape(file)}(, line (\d+))?", _row_place, text)


def _row_place(found: re.Match[str]) -> str:
    return f"{NAME}, row {found[2]}" if found[2] else NAME


def _write(path: Path, rows: Iterable[Mapping[Any, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            plain = {str(key): _plain(value) for key, value in row.items()}
            file.write(json.dumps(plain, ensure_ascii=False) + "\n")
        if not file.tell():
            raise UsageError(f"{NAME}: has no rows")


def _data_rows(data: Data) -> Iterable[Mapping[Any, Any]]:
    """Return the rows of a table. Raises UsageError for an unsupported type of ``data``."""
    if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "to_dict"):
        return _pandas_rows(data)
    if isinstance(data, pa.Table | pa.RecordBatch) or hasattr(data, "__arrow_c_stream__"):
        rows: list[dict[str, Any]] = _with_microseconds(pa.table(data)).to_pylist()
        return rows
    if isinstance(data, Mapping):
        columns = {key: list(values) for key, values in data.items()}
        if len(set(map(len, columns.values()))) > 1:
            raise UsageError(f"{NAME}: the columns have different lengths")
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    rows = list(data) if isinstance(data, Iterable) else []
    if not isinstance(data, Iterable) or not all(isinstance(row, Mapping) for row in rows):
        raise UsageError(
            f"{NAME}: must be a data frame, an Arrow table, a list of dicts, a dict of columns, "
            f"or the name of a file, not {type(data).__name__}"
        )
    return rows


def _pandas_rows(frame: Any) -> Iterable[Mapping[Any, Any]]:
    """Return the rows of a pandas frame; an index with a name becomes a column."""
    named = any(name is not None for name in frame.index.names)
    rows: list[dict[Any, Any]] = (frame.reset_index() if named else frame).to_dict("records")
    return rows


def _with_microseconds(table: pa.Table) -> pa.Table:
    """Return the table with times rounded to microseconds, which Python can hold."""
    fields = [
        field.with_type(pa.timestamp("us", field.type.tz))
        if pa.types.is_timestamp(field.type)
        else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields), safe=False)


def _plain(value: Any) -> Any:
    """Return a value as a JSON type; missing and infinite values are None."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    return _plain_number(float(value)) if isinstance(value, float | Decimal) else _text(value)


def _plain_number(value: float) -> float | None:
    """Return a whole number without decimals, because the number may be a client's name."""
    return None if not isfinite(value) else int(value) if value.is_integer() else value


def _text(value: Any) -> str | float | None:
    """Return a time, a duration in seconds, or another value as text."""
    if type(value).__name__ in ("NAType", "NaTType"):  # pandas uses these types for missing values
        return None
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
