"""Files of records: JSON lines, JSON or CSV, perhaps ``.gz``."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import chain
from pathlib import Path

from fairbench.errors import DataError
from fairbench.files.csv_text import csv_rows
from fairbench.files.json_text import Place, json_file, json_objects
from fairbench.files.reader import opened

PEEKED = 4096  # bytes
NO_TEXT = {
    b"\x1f\x8b": "is compressed with gzip; rename it so that it ends in .gz",
    b"PK\x03\x04": "is a spreadsheet or a zip archive: save it as CSV",
    b"PAR1": "is Parquet: save it as CSV or JSON lines",
    b"\xff\xfe": "is UTF-16: save it as UTF-8",
    b"\xfe\xff": "is UTF-16: save it as UTF-8",
}
"""How files begin that are often taken for CSV, and what to do."""


class Kind(Enum):
    """The format in which a file holds its records."""

    CSV = "a line of column names, then one record per line"
    LIST = "a list of JSON"
    OBJECTS = "JSON lines, or one object"


_BY_NAME = {".csv": Kind.CSV, ".tsv": Kind.CSV}


def kind_of(path: Path, shown: str) -> Kind:
    """Return the format of a file, by its name if that is clear, else by its beginning.

    Raises DataError if the file is unreadable or not text.
    """
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


def records_of(path: Path, *, streamed: bool = False, stripped: bool = False) -> Iterator[Place]:
    """Yield a file's objects, or its CSV rows as dicts of strings, with their locations.

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
    else:
        found = json_objects(path, f"{path}", streamed=streamed)
    first = next(found, None)
    if first is None:
        raise DataError(f"{path}: holds no records")
    return chain([first], found)


def _rows(path: Path, *, streamed: bool, stripped: bool) -> Iterator[Place]:
    for number, cells in csv_rows(path, f"{path}", streamed=streamed):
        texts = {name: text.strip() for name, text in cells.items()} if stripped else cells
        yield Place(f"{path}, line {number}", texts)


def _listed(path: Path) -> Iterator[Place]:
    for number, one in enumerate(json_file(path, f"{path}"), start=1):
        where = f"{path}, record {number}"
        if not isinstance(one, dict):
            raise DataError(f"{where}: must be a JSON object")
        yield Place(where, one)
