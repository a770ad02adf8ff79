"""Files of other people's records: JSON lines, JSON, or parquet, ``.gz`` or not.

A file is read as a list of objects, whatever is in them; ``layout`` says what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbench.errors import DataError
from fairbench.files.json_text import parsed
from fairbench.files.parquet import read_parquet
from fairbench.files.reader import Line, Memory, lines

if TYPE_CHECKING:
    import pyarrow as pa

Object = dict[str, Any]

OBJECT_BYTES, VALUE_BYTES = 200, 100  # of a row, at most


def read_objects(path: Path) -> list[tuple[str, Object]]:
    """The objects of a file and where each stands (``FILE, line 3``); of parquet, its rows.

    Raises DataError if the file cannot be read, or naming the line that is no JSON object.
    """
    if path.suffix == ".parquet":
        return [(f"{path}, row {n}", row) for n, row in enumerate(_parquet_rows(path), start=1)]
    objects = list(_json_objects(path))
    if not objects:
        raise DataError(f"{path}: no records")
    return objects


def _parquet_rows(path: Path) -> list[Object]:
    table = read_parquet(path)
    if not len(table):
        raise DataError(f"{path}: no records")
    Memory(f"{path}").take(len(table) * (OBJECT_BYTES + VALUE_BYTES * table.num_columns))
    columns = [_values(column) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray) -> Iterator[Any]:
    """Its values; one of a text that is there for a million rows is one text."""
    for chunk in column.chunks:
        if hasattr(chunk, "dictionary"):
            texts = chunk.dictionary.to_pylist()
            yield from (None if n is None else texts[n] for n in chunk.indices.to_pylist())
        else:
            yield from chunk.to_pylist()


def _json_objects(path: Path) -> Iterator[tuple[str, Object]]:
    """An object a line, or the one that a file holds on however many lines."""
    found = lines(path, f"{path}")
    first = None
    for number, data in found:
        first = first or number
        where = f"{path}, line {number}"
        try:
            yield where, _object(parsed(data, where), where)
        except DataError:
            if number > first or (whole := _whole_object(data, found, f"{path}")) is None:
                raise
            yield f"{path}", whole


def _whole_object(first: bytes, rest: Iterator[Line], shown: str) -> Object | None:
    """The object that begins on a line of its own; None if it is none."""
    if not first.lstrip().startswith(b"{"):
        return None
    memory = Memory(shown)
    data = bytearray(first)
    for line in rest:
        data += line.data
        if len(data) > memory.largest_line:
            raise memory.too_large()
    try:
        content = parsed(bytes(data), shown)
    except DataError:
        return None
    return content if isinstance(content, dict) else None


def _object(content: Any, where: str) -> Object:
    if not isinstance(content, dict):
        raise DataError(f"{where}: must be a JSON object")
    return content
