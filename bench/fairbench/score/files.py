"""Files of external records: JSON lines, JSON, CSV or parquet, perhaps ``.gz``.

A file is read as a list of any objects; ``layout`` defines their meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbench.errors import DataError
from fairbench.files.csv_text import csv_rows
from fairbench.files.json_text import Kind, json_objects, kind_of, listed
from fairbench.files.parquet import read_parquet
from fairbench.files.reader import Memory

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
    kind = kind_of(path, f"{path}") if path.is_file() else Kind.OBJECTS  # a pipe is read once
    if kind is Kind.CSV:
        return list(_csv_rows(path))
    read = listed if kind is Kind.LIST else json_objects
    objects: list[tuple[str, Object]] = list(read(path, f"{path}"))
    if not objects:
        raise DataError(f"{path}: holds no records")
    return objects


def _parquet_rows(path: Path) -> list[Object]:
    table = read_parquet(path)
    if not len(table):
        raise DataError(f"{path}: holds no records")
    Memory(f"{path}").take(len(table) * (OBJECT_BYTES + VALUE_BYTES * table.num_columns))
    columns = [_values(column) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _csv_rows(path: Path) -> Iterator[tuple[str, Object]]:
    """Yield each row as an object of texts without surrounding blanks."""
    empty = True
    for number, cells in csv_rows(path, f"{path}"):
        empty = False
        yield f"{path}, line {number}", {name: text.strip() for name, text in cells.items()}
    if empty:
        raise DataError(f"{path}: holds no records")


def _values(column: pa.ChunkedArray) -> Iterator[Any]:
    """Yield the column's values; a text that is repeated in many rows is one object."""
    for chunk in column.chunks:
        if hasattr(chunk, "dictionary"):
            texts = chunk.dictionary.to_pylist()
            yield from (None if n is None else texts[n] for n in chunk.indices.to_pylist())
        else:
            yield from chunk.to_pylist()
