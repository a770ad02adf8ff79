"""JSON of users as safe values, limited in length and depth: files, lines and records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib.resources.abc import Traversable
from itertools import chain
from math import isfinite
from typing import Any, NamedTuple

from fairbench.errors import MAX_DEPTH, DataError, is_too_deep
from fairbench.files.reader import Line, Memory, decoded, lines, read_whole

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
    """Yield the JSON object on each line, or objects that span several lines each.

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
            if number > first or not (wholes := _whole_objects(Line(number, data), found, shown)):
                raise
            yield from wholes


def _whole_objects(first: Line, rest: Iterator[Line], shown: str) -> list[Place]:
    """Return the object that starts on the first line and spans several, or several such objects.

    Each of several objects ends on a line of its closing brace alone. The list is empty if the
    lines hold anything else.
    """
    if not first.data.lstrip().startswith(b"{"):
        return []
    memory = Memory(shown)
    size, parts, open_part = 0, [], (first.number, bytearray())
    for line in chain([first], rest):
        open_part = open_part if open_part[1] else (line.number, bytearray())
        open_part[1].extend(line.data)
        size += len(line.data)
        if size > memory.largest_line:
            raise memory.too_large()
        if line.data.rstrip() == b"}":
            parts.append(open_part)
            open_part = (0, bytearray())
    parts += [open_part] if open_part[1] else []
    try:
        return [Place(shown, _object(parsed(b"".join(part for _, part in parts), shown), shown))]
    except DataError:
        pass
    try:
        numbered = [(f"{shown}, line {number}", bytes(part)) for number, part in parts]
        return [Place(where, _object(parsed(part, where), where)) for where, part in numbered]
    except DataError:
        return []


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
        if "\\u" in text and _SURROGATE.search(text):
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


def inner(value: Any, *keys: str) -> Any:
    """Return the value under nested keys, or None."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def objects_in(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; empty if the value is not a list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
