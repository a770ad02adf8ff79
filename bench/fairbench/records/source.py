"""The records of a file: JSON lines, JSON, CSV or Parquet, perhaps ``.gz``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any

from fairbench.errors import DataError, printable, shortened
from fairbench.files.csv_text import csv_rows, header_in, separator_in
from fairbench.files.json_text import Place, json_file, json_objects
from fairbench.files.parquet import read_parquet
from fairbench.files.reader import Memory, opened
from fairbench.files.times import FIRST_DATE_S, is_moment, is_number, number_of

PEEKED = 4096  # bytes
NO_TEXT = {
    b"\x1f\x8b": "is compressed with gzip; rename it so that it ends in .gz",
    b"PK\x03\x04": "is a spreadsheet or a zip archive: save it as CSV",
    b"PAR1": "is Parquet: save it as CSV or JSON lines, or rename it so that it ends in .parquet",
    b"\xff\xfe": "is UTF-16: save it as UTF-8",
    b"\xfe\xff": "is UTF-16: save it as UTF-8",
}
"""How files begin that are often taken for CSV, and what to do."""

MAX_KEYS = 10_000  # keys of a record; an object with more holds no request
OBJECT_BYTES, VALUE_BYTES = 200, 100  # upper estimates per row and per value


class Kind(Enum):
    """The format in which a file holds its records."""

    CSV = "a line of column names, then one record per line"
    LIST = "a list of JSON"
    OBJECTS = "JSON lines, or one object"
    PARQUET = "columns"


_BY_NAME = {".csv": Kind.CSV, ".tsv": Kind.CSV}


def kind_of(path: Path, shown: str) -> Kind:
    """Return the format of a file, by its name if that is clear, else by its beginning.

    Raises DataError if the file is unreadable or not text.
    """
    if path.suffix == ".parquet":
        return Kind.PARQUET
    with opened(path, shown) as stream:
        start = stream.read(PEEKED)
    for mark, what in NO_TEXT.items():
        if start.startswith(mark):
            raise DataError(f"{shown}: {what}")
    if b"\0" in start:
        raise DataError(f"{shown}: is not text, or is UTF-16: save it as UTF-8")
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    start = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    by_start = {b"{": Kind.OBJECTS, b"[": Kind.LIST}
    return _BY_NAME.get(ending) or by_start.get(start[:1], Kind.CSV)


def separator_of(path: Path) -> str:
    """Return the mark between the columns of a file of CSV."""
    with opened(path, f"{path}") as stream:
        start = stream.read(PEEKED).decode("utf-8", "replace")
    return separator_in(header_in(start))


def records_of(path: Path, *, streamed: bool = False, stripped: bool = False) -> Iterator[Place]:
    """Yield a file's objects, or its rows of CSV or Parquet as dicts, with their locations.

    Raises DataError at once if there is none, and later naming the record that is no object.

    Args:
        path: File to read. A pipe, which can only be read once, holds objects.
        streamed: Whether the content is not kept, as in ``reader.lines``.
        stripped: Whether texts of CSV have no surrounding blanks.
    """
    kind = kind_of(path, f"{path}") if path.is_file() else Kind.OBJECTS
    if kind is Kind.CSV:
        found = _rows(path, streamed=streamed, stripped=stripped)
    elif kind is Kind.LIST:
        found = _listed(path)
    elif kind is Kind.PARQUET:
        found = _parquet_rows(path)
    else:
        found = json_objects(path, f"{path}", streamed=streamed)
    first = next(found, None)
    if first is None:
        raise DataError(f"{path}: holds no records")
    return map(_checked, chain([first], found))


def _checked(place: Place) -> Place:
    if len(place.value) > MAX_KEYS:
        raise DataError(
            f"{place.where}: has {len(place.value):,} keys: a request has at most {MAX_KEYS:,}"
        )
    return place


def _rows(path: Path, *, streamed: bool, stripped: bool) -> Iterator[Place]:
    for place, (number, cells) in enumerate(csv_rows(path, f"{path}", streamed=streamed)):
        if place == 0:
            _check_header(list(cells), f"{path}")
        texts = {name: text.strip() for name, text in cells.items()} if stripped else cells
        yield Place(f"{path}, line {number}", texts)


def _check_header(names: list[str], shown: str) -> None:
    """Raise DataError if the first line is a record, such as a line of a web server."""
    prose = len(names) == 1 and names[0].count(" ") >= 3
    if prose or any(_is_time(name) for name in names):
        raise DataError(
            f"{shown}, line 1: {shortened(repr(printable(names[0])))}: must be a line of column "
            "names, such as time,client,input_tokens,output_tokens: add that line, or write the "
            "log as JSON lines"
        )


def _is_time(name: str) -> bool:
    """Return whether the name of a column is a time or a fraction, as only values are."""
    number = number_of(name)
    if number is not None:
        return number % 1 != 0 or number >= FIRST_DATE_S
    return is_moment(name.partition(" ")[0]) and not is_number(name.partition(" ")[0])


def _listed(path: Path) -> Iterator[Place]:
    for number, one in enumerate(json_file(path, f"{path}"), start=1):
        where = f"{path}, record {number}"
        if not isinstance(one, dict):
            raise DataError(f"{where}: must be a JSON object")
        yield Place(where, one)


def _parquet_rows(path: Path) -> Iterator[Place]:
    """Yield the rows of a table; a text that is repeated in many rows is one object."""
    table = read_parquet(path, any_type=True)
    Memory(f"{path}").take(len(table) * (OBJECT_BYTES + VALUE_BYTES * table.num_columns))
    names, number = table.column_names, 0
    for batch in table.to_batches():
        columns = [_values(column) for column in batch.columns]
        for row in zip(*columns, strict=True):
            number += 1
            yield Place(f"{path}, row {number}", dict(zip(names, row, strict=True)))


def _values(column: Any) -> list[Any]:
    if hasattr(column, "dictionary"):
        texts = column.dictionary.to_pylist()
        return [None if n is None else texts[n] for n in column.indices.to_pylist()]
    values = column.to_pylist()
    kind = next((type(one) for one in values if one is not None), type(None))
    if issubclass(kind, date | datetime):
        return [one if one is None else one.isoformat() for one in values]
    if issubclass(kind, timedelta):
        return [one if one is None else f"{one.total_seconds():.9f}s" for one in values]
    if issubclass(kind, Decimal):
        return [one if one is None else f"{one}" for one in values]
    return list(values)
