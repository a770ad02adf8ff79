"""Tables in memory, written to a file that the readers of logs read."""

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

from fairbench.api.logs import Data
from fairbench.errors import FairbenchError, UsageError

NAME = "data"  # the name that messages and results use for a table in memory


@contextmanager
def as_file(data: Data) -> Iterator[str]:
    """Yield the name of a file that holds the rows of ``data``.

    If ``data`` is a file name, the function yields ``data`` itself. Rows in memory are written to a
    temporary file, which error messages call ``data``. Raises UsageError for a source of an
    unsupported type, and for a table without rows.
    """
    if isinstance(data, str | PathLike):
        yield fspath(data)
        return
    with TemporaryDirectory(prefix="fairbench-") as folder:
        path = Path(folder) / f"{NAME}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for row in _data_rows(data):
                plain = {str(key): _plain(value) for key, value in row.items()}
                file.write(json.dumps(plain, ensure_ascii=False) + "\n")
            if not file.tell():
                raise UsageError(f"{NAME}: has no rows")
        try:
            yield str(path)
        except FairbenchError as error:
            error.args = tuple(shown(str(one), str(path)) for one in error.args)
            raise


def shown(text: str, file: str) -> str:
    """Replace the temporary file and line in an error message by ``data`` and a row number."""
    if not Path(file).name.startswith(NAME):
        return text
    return re.sub(rf"{re.escape(file)}(, line (\d+))?", _row_place, text)


def _row_place(found: re.Match[str]) -> str:
    return f"{NAME}, row {found[2]}" if found[2] else NAME


def _data_rows(data: Data) -> Iterable[Mapping[Any, Any]]:
    """Return the rows of a data frame, Arrow table, list or dict of columns as dicts."""
    if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "to_dict"):
        # A named index of a pandas data frame becomes a column of the log.
        named = any(name is not None for name in data.index.names)
        rows: list[dict[Any, Any]] = (data.reset_index() if named else data).to_dict("records")
        return rows
    if isinstance(data, pa.Table | pa.RecordBatch) or hasattr(data, "__arrow_c_stream__"):
        rows = _with_microseconds(pa.table(data)).to_pylist()
        return rows
    if isinstance(data, Mapping):
        columns = {key: list(values) for key, values in data.items()}
        if len(set(map(len, columns.values()))) > 1:
            raise UsageError(f"{NAME}: all columns must have the same length")
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    rows = list(data) if isinstance(data, Iterable) else []
    if not isinstance(data, Iterable) or not all(isinstance(row, Mapping) for row in rows):
        raise UsageError(
            f"{NAME}: must be a data frame, an Arrow table, a list of dicts, a dict of columns, "
            f"or the name of a file, not {type(data).__name__}"
        )
    return rows


def _with_microseconds(table: pa.Table) -> pa.Table:
    """Round the times of a table to microseconds, because Python's times are not more precise."""
    fields = [
        field.with_type(pa.timestamp("us", field.type.tz))
        if pa.types.is_timestamp(field.type)
        else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields), safe=False)


def _plain(value: Any) -> Any:
    """Return a value as a JSON type; missing and infinite values become None."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if not isinstance(value, float | Decimal):
        return _text(value)
    number = float(value)
    # The float 7.0 becomes 7, because a column of client names may contain numbers.
    return None if not isfinite(number) else int(number) if number.is_integer() else number


def _text(value: Any) -> str | float | None:
    """Return a duration as a number of seconds, and any other value as text."""
    if type(value).__name__ in ("NAType", "NaTType"):  # pandas uses these types for missing values.
        return None
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
