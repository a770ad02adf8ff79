"""Files of external records: JSON lines, JSON, CSV or parquet, perhaps ``.gz``.

A file is read as a list of any objects; ``layout`` defines their meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbench.errors import DataError
from fairbench.files.parquet import read_parquet
from fairbench.files.reader import Memory
from fairbench.files.records import records_of

if TYPE_CHECKING:
    import pyarrow as pa

Object = dict[str, Any]

OBJECT_BYTES, VALUE_BYTES = 200, 100  # upper estimates per row and per value


def read_objects(path: Path) -> list[tuple[str, Object]]:
    """Return the objects of a file with their locations (``FILE, line 3``); of parquet, its rows.

    Raises DataError if the file cannot be read, or naming the line that is no JSON object.
    """
    if path.suffix == ".parquet":
        return [(f"{path}, row {n}", row) for n, row in enumerate(_parquet_rows(path), start=1)]
    return list(records_of(path, stripped=True))


def _parquet_rows(path: Path) -> list[Object]:
    table = read_parquet(path)
    if not len(table):
        raise DataError(f"{path}: holds no records")
    Memory(f"{path}").take(len(table) * (OBJECT_BYTES + VALUE_BYTES * table.num_columns))
    columns = [_values(column) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray) -> Iterator[Any]:
    """Yield the column's values; a text that is repeated in many rows is one object."""
    for chunk in column.chunks:
        if hasattr(chunk, "dictionary"):
            texts = chunk.dictionary.to_pylist()
            yield from (None if n is None else texts[n] for n in chunk.indices.to_pylist())
        else:
            yield from chunk.to_pylist()
