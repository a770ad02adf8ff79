"""JSON of users as safe values, limited in length and depth: files, lines and records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import Enum
from importlib.resources.abc import Traversable
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from fairbench.errors import MAX_DEPTH, DataError, is_too_deep
from fairbench.files.reader import Line, Memory, decoded, lines, opened, read_whole

INTEGERS = range(-(2**63), 2**64)
_LONG_NUMBER = re.compile(r"[0-9]{19}")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Place(NamedTuple):
    """A value of a file, and its location for error messages."""

    where: str
    value: Any


def json_lines(file: Traversable, shown: str) -> Iterator[Place]:
    """Yield each JSON line's value with its location. Raises DataError naming the line."""
    for number, data in lines(file, shown):
        where = f"{shown}, line {number}"
        yield Place(where, parsed(data, where))


def json_objects(file: Traversable, shown: str, *, streamed: bool = False) -> Iterator[Place]:
    """Yield the JSON object on each line, or the single object of a whole file.

    ``streamed`` content is not kept, and its number of lines is unlimited. Raises DataError naming
    the line that is not a JSON object.
    """
    found = lines(file, shown, streamed=streamed)
    first = None
    for number, data in found:
        first = first or number
        where = f"{shown}, line {number}"
        try:
            yield Place(where, _object(parsed(data, where), where))
        except DataError:
            if number > first or (whole := _whole_object(data, found, shown)) is None:
                raise
            yield Place(shown, whole)


def _whole_object(first: bytes, rest: Iterator[Line], shown: str) -> dict[str, Any] | None:
    """Return the object that starts on the first line and spans several, or None."""
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


def _object(content: Any, where: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise DataError(f"{where}: must be a JSON object")
    return content


def json_file(file: Traversable, shown: str, *, strict: bool = False) -> Any:
    """Return the JSON value of a whole file. Raises DataError with the line of the error.

    ``strict`` also rejects NaN, infinities, and numbers too large for a float.
    """
    return parsed(read_whole(file, shown), shown, several_lines=True, strict=strict)


def parsed(data: bytes, where: str, *, several_lines: bool = False, strict: bool = False) -> Any:
    """Return the value of a JSON text. Raises DataError for anything that is not portable.

    Besides invalid text, this includes deep nesting, integers of more than 64 bits, and lone
    surrogates.

    Args:
        data: Encoded text.
        where: Place of the text, for messages.
        several_lines: Whether messages name the line within the text.
        strict: Whether numbers that are not finite are refused too.
    """
    text = decoded(data, where)
    options: dict[str, Any] = {}
    if strict:
        options = {"parse_constant": _refused, "parse_float": _finite}
    if _LONG_NUMBER.search(text):
        options["parse_int"] = _integer
    try:
        value = json.loads(text, **options)
        if text.count("[") + text.count("{") > MAX_DEPTH and is_too_deep(value):
            raise RecursionError
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if several_lines else ""
        raise DataError(f"{where}{line}: not JSON: {error.msg}") from None
    except RecursionError:
        raise DataError(f"{where}: nested too deeply") from None
    except MemoryError:
        raise DataError(f"{where}: not enough memory to read it") from None
    except UnicodeEncodeError:
        raise DataError(
            f"{where}: cannot be read: a text contains an incomplete character (a lone surrogate)"
        ) from None
    except ValueError as error:
        raise DataError(f"{where}: cannot be read: {error}") from None
    return value


def _integer(text: str) -> int:
    if len(text) > 20 or (value := int(text)) not in INTEGERS:
        raise ValueError(f"an integer of {len(text.lstrip('-'))} digits does not fit 64 bits")
    return value


def _finite(text: str) -> float:
    if not isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} does not fit 64 bits")
    return value


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


PEEKED = 4096  # bytes read ahead
NO_TEXT = {
    b"\x1f\x8b": "is compressed with gzip; rename it so that it ends in .gz",
    b"PK\x03\x04": "is a spreadsheet or a zip archive: save it as CSV",
    b"PAR1": "is Parquet: save it as CSV or JSON lines",
    b"\xff\xfe": "is UTF-16: save it as UTF-8",
    b"\xfe\xff": "is UTF-16: save it as UTF-8",
}
"""The first bytes of files that are often taken for CSV, with advice."""


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
