"""CSV of users, row by row."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from itertools import chain
from typing import NamedTuple

from fairbench.errors import DataError, shortened
from fairbench.files.reader import LARGEST_PART, decoded, limit_bytes, lines

MAX_CELLS = 100_000  # values are separated by tabs, semicolons or bars
_SEPARATOR_LINE = re.compile(r'"?sep=.?"?\s*', re.IGNORECASE)
"""The first line of spreadsheets, which the header below confirms."""


class Row(NamedTuple):
    """The cells of a row by column, and the number of its last line."""

    number: int
    cells: dict[str, str]


def csv_reader(file: Traversable, shown: str, *, streamed: bool = False) -> csv.DictReader[str]:
    """Return a reader of CSV rows, which raises ``csv.Error`` or DataError.

    ``streamed`` has the same meaning as in ``reader.lines``.
    """
    # the limit of a line, because a prompt may be long
    csv.field_size_limit(limit_bytes() // LARGEST_PART)
    # line ends, which a quoted text may contain
    found = lines(file, shown, blank=True, streamed=streamed)
    texts = (decoded(data, f"{shown}, line {number}") for number, data in found)
    above: list[str] = []  # blank lines, and the line of column names
    while not above or not above[-1].strip():
        if (text := next(texts, None)) is None:
            break
        above.append("\n" if _SEPARATOR_LINE.fullmatch(text) else text)
    separator = separator_in("".join(above))
    if separator != ",":  # cells between other marks are not counted as memory
        texts = (_checked(text, separator, shown) for text in texts)
    # The reader is strict, because a quote that is never closed would hide the rest of the file.
    return csv.DictReader(chain(above, texts), delimiter=separator, strict=True)


def header_in(start: str) -> str:
    """Return the line of column names at the beginning of a file."""
    named = (
        one for one in start.splitlines() if one.strip() and not _SEPARATOR_LINE.fullmatch(one)
    )
    return next(named, "")


def separator_in(header: str) -> str:
    """Return the mark between the columns of a line of column names."""
    return next((mark for mark in (",", "\t", ";", "|") if mark in header), ",")


def _checked(text: str, separator: str, shown: str) -> str:
    if text.count(separator) > MAX_CELLS:
        raise DataError(f"{shown}: a line has more than {MAX_CELLS:,} cells")
    return text


def csv_rows(file: Traversable, shown: str, *, streamed: bool = False) -> Iterator[Row]:
    """Yield the rows below the line of column names; missing cells are empty.

    ``streamed`` has the same meaning as in ``lines``. Raises DataError naming the line if the file
    is not CSV, is unreadable or too large, or if cells cannot be matched to columns.
    """
    reader = csv_reader(file, shown, streamed=streamed)
    rows = reader.reader
    try:
        reader.fieldnames = next(filter(None, rows), None)
        for name, times in Counter(reader.fieldnames or ()).items():
            if name and times > 1:
                raise DataError(f"{shown}, line 1: column {shortened(repr(name))} appears twice")
        names = list(reader.fieldnames or ())
        width, blank = len(names), [""] * len(names)
        for cells in filter(None, rows):
            if any(cells[width:]):
                raise DataError(
                    f"{shown}, line {rows.line_num}: has more cells than line 1 has columns"
                )
            given = cells if len(cells) >= width else [*cells, *blank[len(cells) :]]
            yield Row(rows.line_num, dict(zip(names, given, strict=False)))
    except csv.Error as error:
        old = "new-line character" in str(error)  # lines of old Macs
        reason = "its lines end in CR without LF: save it with LF" if old else error
        raise DataError(f"{shown}, line {rows.line_num}: not CSV: {reason}") from None
