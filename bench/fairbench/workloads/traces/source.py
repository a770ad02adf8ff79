"""The source of a trace's records: JSON lines, JSON or CSV, compressed or not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from fairbench.errors import DataError
from fairbench.files.csv_text import csv_rows
from fairbench.files.json_text import Kind, Place, json_objects, kind_of, listed

FOLDERS = "FAIRBENCH_DATA"


def find(name: str) -> Path:
    """Return the file with this name, here or in a folder of ``FAIRBENCH_DATA``."""
    folders = [text for text in os.environ.get(FOLDERS, "").split(os.pathsep) if text]
    for folder in ("", *folders):
        if "\0" not in name and (path := Path(folder) / name).is_file():
            return path
    if "\0" not in name and Path(name).exists():
        raise DataError(f"trace {name}: is not a file")
    where = f"the folders of {FOLDERS}" if folders else f"{FOLDERS}, which is not set"
    raise DataError(f"trace {name}: no such file, neither here nor in {where}")


def records_of(path: Path) -> Iterator[Place]:
    """Yield the objects of a file, at least one; a CSV line becomes an object of texts.

    Raises DataError naming file and line.
    """
    shown = f"{path}"
    found = _records(path, shown)
    first = next(found, None)
    if first is None:
        raise DataError(f"{shown}: holds no records")
    return chain([first], found)


def _records(path: Path, shown: str) -> Iterator[Place]:
    kind = kind_of(path, shown)
    if kind is Kind.CSV:
        for number, cells in csv_rows(path, shown, streamed=True):
            yield Place(f"{shown}, line {number}", cells)
    elif kind is Kind.LIST:
        yield from listed(path, shown)
    else:
        yield from json_objects(path, shown, streamed=True)
