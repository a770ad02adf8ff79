"""Files of request records, whose format is recognised by their beginning."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from fairbench.errors import DataError
from fairbench.files.json_text import Place, json_file
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


def listed(path: Path, shown: str) -> Iterator[Place]:
    """Yield the objects of a JSON list with their locations. Raises DataError for others."""
    for number, one in enumerate(json_file(path, shown), start=1):
        where = f"{shown}, record {number}"
        if not isinstance(one, dict):
            raise DataError(f"{where}: must be a JSON object")
        yield Place(where, one)
