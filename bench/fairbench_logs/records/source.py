"""The records of a file: JSON lines, JSON, CSV or Parquet, optionally compressed (``.gz``)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any

from fairbench.errors import DataError, printable, shortened
from fairbench.files import formats
from fairbench.files.reader import ReadMemory, opened
from fairbench.files.times import FIRST_DATE_S, is_number, number_of
from fairbench_logs.records.cells import is_moment

PEEKED = 4096  # The format of a file is inferred from this number of bytes at its beginning.
NO_TEXT = {
    b"\x1f\x8b": "is compressed with gzip; rename it so that it ends in .gz",
    b"PK\x03\x04": "is a spreadsheet or a zip archive: save it as CSV",
    b"PAR1": "is Parquet: save it as CSV or JSON lines, or rename it so that it ends in .parquet",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd: decompress it, or compress it with gzip",
    b"\xfd7zXZ\0": "is compressed with xz: decompress it, or compress it with gzip",
    b"BZh": "is compressed with bzip2: decompress it, or compress it with gzip",
    b"\xff\xfe": "is UTF-16: save it as UTF-8",
    b"\xfe\xff": "is UTF-16: save it as UTF-8",
}
"""First bytes of files that users mistake for CSV, each with advice for the user."""

MAX_KEYS = 10_000
# Memory estimates assume 200 bytes for each record and 100 bytes for each value of a record.
OBJECT_BYTES, VALUE_BYTES = 200, 100


class FileKind(Enum):
    """The form in which a file stores its records, such as JSON lines or CSV."""

    CSV = "a line of column names, then one record per line"
    LIST = "a list of JSON"
    OBJECTS = "JSON lines, or one object"
    PARQUET = "columns"


_BY_NAME = {".csv": FileKind.CSV, ".tsv": FileKind.CSV}


def kind_of(path: Path, shown: str) -> FileKind:
    """Return whether a file is CSV, Parquet or JSON, judged by its name or its first bytes.

    Raises DataError if the file is unreadable or not text.
    """
    if path.suffix == ".parquet":
        return FileKind.PARQUET
    with opened(path, shown) as stream:
        start = stream.read(PEEKED)
    for mark, what in NO_TEXT.items():
        if start.startswith(mark):
            raise DataError(f"{shown}: {what}")
    if b"\0" in start:
        raise DataError(f"{shown}: is not text, or is UTF-16: save it as UTF-8")
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    start = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    by_start = {b"{": FileKind.OBJECTS, b"[": FileKind.LIST}
    return _BY_NAME.get(ending) or by_start.get(start[:1], FileKind.CSV)


def separator_of(path: Path) -> str:
    """Return the character that separates columns in a CSV file."""
    with opened(path, f"{path}") as stream:
        start = stream.read(PEEKED).decode("utf-8", "replace")
    return formats.separator_in(formats.header_in(start))


def records_of(
    path: Path, *, streamed: bool = False, stripped: bool = False
) -> Iterator[formats.FilePlace]:
    """Yield the records of a file as dictionaries with locations.

    A record is a JSON object, or a row of CSV or Parquet. Raises DataError at once if the file has
    no records, and during iteration for a record that is not an object.

    Args:
        path: The file to read. A pipe must contain JSON objects, because files in other formats are
            read twice.
        streamed: Whether the caller keeps no records in memory; the size of the file is then not
            limited (see ``reader.lines``).
        stripped: Whether blanks around the values of a CSV file are removed.
    """
    kind = kind_of(path, f"{path}") if path.is_file() else FileKind.OBJECTS
    if kind is FileKind.CSV:
        found = _csv_records(path, streamed=streamed, stripped=stripped)
    elif kind is FileKind.LIST:
        found = _json_list_records(path)
    elif kind is FileKind.PARQUET:
        found = _parquet_rows(path)
    else:
        found = formats.json_objects(path, f"{path}", streamed=streamed)
    first = next(found, None)
    if first is None:
        raise DataError(f"{path}: holds no records")
    return map(_with_few_keys, chain([first], found))


def _with_few_keys(place: formats.FilePlace) -> formats.FilePlace:
    if len(place.value) > MAX_KEYS:
        raise DataError(
            f"{place.where}: has {len(place.value):,} keys; a request may have at most {MAX_KEYS:,}"
        )
    return place


def _csv_records(path: Path, *, streamed: bool, stripped: bool) -> Iterator[formats.FilePlace]:
    for place, (number, cells) in enumerate(formats.csv_rows(path, f"{path}", streamed=streamed)):
        if place == 0:
            _check_header(list(cells), f"{path}")
        texts = {name: text.strip() for name, text in cells.items()} if stripped else cells
        yield formats.FilePlace(f"{path}, line {number}", texts)


def _check_header(names: list[str], shown: str) -> None:
    """Raise DataError if the first line is a record instead of column names."""
    prose = len(names) == 1 and names[0].count(" ") >= 3
    if prose or any(_is_time(name) for name in names):
        raise DataError(
            f"{shown}, line 1: {shortened(repr(printable(names[0])))}: line 1 must list the column "
            "names, such as time,client,input_tokens,output_tokens; add this line, or write the "
            "log as JSON lines"
        )


def _is_time(name: str) -> bool:
    """Return whether a name looks like a time or a fraction: a value, not a column's name."""
    number = number_of(name)
    if number is not None:
        return number % 1 != 0 or number >= FIRST_DATE_S
    return is_moment(name.partition(" ")[0]) and not is_number(name.partition(" ")[0])


def _json_list_records(path: Path) -> Iterator[formats.FilePlace]:
    for number, one in enumerate(formats.json_file(path, f"{path}"), start=1):
        where = f"{path}, record {number}"
        if not isinstance(one, dict):
            raise DataError(f"{where}: must be a JSON object")
        yield formats.FilePlace(where, one)


def _parquet_rows(path: Path) -> Iterator[formats.FilePlace]:
    table = formats.read_parquet(path, any_type=True)
    ReadMemory(f"{path}").take_bytes(len(table) * (OBJECT_BYTES + VALUE_BYTES * table.num_columns))
    names, number = table.column_names, 0
    for batch in table.to_batches():
        columns = [_parquet_values(column) for column in batch.columns]
        for row in zip(*columns, strict=True):
            number += 1
            yield formats.FilePlace(f"{path}, row {number}", dict(zip(names, row, strict=True)))


def _parquet_values(column: Any) -> list[Any]:
    if hasattr(column, "dictionary"):
        texts = list(map(_json_value, column.dictionary.to_pylist()))
        return [None if n is None else texts[n] for n in column.indices.to_pylist()]
    values = column.to_pylist()
    kind = next((type(one) for one in values if one is not None), float)
    return list(values) if kind in (int, float, str, bool) else list(map(_json_value, values))


def _json_value(value: Any) -> Any:
    """Convert a value of a Parquet file, at any depth, to the value that JSON would hold."""
    if isinstance(value, dict):
        return {name: _json_value(one) for name, one in value.items()}
    if isinstance(value, list):
        plain = not value or isinstance(value[0], int | float | str)
        return value if plain else list(map(_json_value, value))
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.9f}s"
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return f"{value}" if isinstance(value, Decimal) else value
