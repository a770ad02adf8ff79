"""Where the records of a trace come from: JSON lines, JSON or CSV, packed or not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from fairbench.errors import DataError
from fairbench.files.csv_text import csv_rows
from fairbench.files.json_text import Place, json_file, json_objects
from fairbench.files.reader import opened

FOLDERS = "FAIRBENCH_DATA"
PEEKED = 4096  # bytes
NO_TEXT = {
    b"\x1f\x8b": "is packed with gzip, which its name has to say: let it end in .gz",
    b"PK\x03\x04": "is a spreadsheet or a zip archive: save it as CSV",
    b"PAR1": "is Parquet: save it as CSV or JSON lines",
    b"\xff\xfe": "is UTF-16: save it as UTF-8",
    b"\xfe\xff": "is UTF-16: save it as UTF-8",
}
"""How files begin that are often taken for CSV, and what to do."""
CSV = (".csv", ".tsv")


def find(name: str) -> Path:
    """The file of that name, here or in a folder of ``FAIRBENCH_DATA``. DataError if nowhere."""
    folders = os.environ.get(FOLDERS, "").split(os.pathsep)
    for folder in ("", *filter(None, folders)):
        if "\0" not in name and (path := Path(folder) / name).is_file():
            return path
    if "\0" not in name and Path(name).exists():
        raise DataError(f"trace {name}: is not a file")
    raise DataError(f"trace {name} is not here: name its folder in the variable {FOLDERS}")


def records_of(path: Path) -> Iterator[Place]:
    """The objects of a file, a line of CSV being one of texts. At least one.

    Raises DataError naming file and line.
    """
    shown = f"{path}"
    found = _records(path, shown)
    first = next(found, None)
    if first is None:
        raise DataError(f"{shown}: no records")
    return chain([first], found)


def _records(path: Path, shown: str) -> Iterator[Place]:
    with opened(path, shown) as stream:
        start = stream.read(PEEKED)
    for mark, what in NO_TEXT.items():
        if start.startswith(mark):
            raise DataError(f"{shown}: {what}")
    start = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    name = path.name.removesuffix(".gz")
    if name.endswith(CSV) or start[:1] not in (b"{", b"["):
        for number, cells in csv_rows(path, shown, streamed=True):
            yield Place(f"{shown}, line {number}", cells)
    elif start.startswith(b"["):
        yield from _listed(path, shown)
    else:
        yield from json_objects(path, shown, streamed=True)


def _listed(path: Path, shown: str) -> Iterator[Place]:
    """The objects of a JSON list."""
    for number, one in enumerate(json_file(path, shown), start=1):
        if not isinstance(one, dict):
            raise DataError(f"{shown}, record {number}: must be a JSON object")
        yield Place(f"{shown}, record {number}", one)
