"""CSV of strangers, row by row."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from typing import NamedTuple

from fairbench.errors import DataError
from fairbench.files.reader import decoded, lines


class Row(NamedTuple):
    """The cells of a row by column, and the number of its line, 2 for the first."""

    number: int
    cells: dict[str, str]


def csv_reader(file: Traversable, shown: str, *, streamed: bool = False) -> csv.DictReader[str]:
    """Python's reader of the rows, which raises ``csv.Error``, and DataError as ``lines`` does."""
    found = lines(file, shown, blank=True, streamed=streamed)  # as a text in quotes may hold
    return csv.DictReader(decoded(data, f"{shown}, line {number}") for number, data in found)


def csv_rows(file: Traversable, shown: str, *, streamed: bool = False) -> Iterator[Row]:
    """The rows under the first line, which names the columns; missing cells are empty.

    ``streamed``: as in ``lines``.
    Raises DataError naming the line: it is no CSV, cannot be read, or is too large.
    """
    number = 1
    try:
        for number, row in enumerate(csv_reader(file, shown, streamed=streamed), start=2):
            # None is the name of cells beyond the last column, and the value of a missing cell.
            yield Row(number, {k: v or "" for k, v in row.items() if k is not None})
    except csv.Error as error:
        raise DataError(f"{shown}, line {number + 1}: not CSV: {error}") from None
