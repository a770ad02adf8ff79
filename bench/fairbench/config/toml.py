"""TOML values after ``--set``, and writing TOML, which the standard library lacks."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fairbench.errors import UsageError
from fairbench.errors.validation import TOO_DEEP, is_too_deep


class Assignment(NamedTuple):
    """A setting's key, ``NAME.PARAM``, and its value."""

    key: str
    value: Any


def parse_assignment(text: str) -> Assignment:
    """Split ``NAME.PARAM=VALUE``; VALUE is a TOML value, or else plain text.

    Raises UsageError unless the text has that shape.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not re.fullmatch(r"[^.\s]+\.[^\s]+", key):
        raise UsageError(f"--set {text}: write NAME.PARAM=VALUE, such as dlpm.quantum=5000")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except RecursionError:
        raise UsageError(f"--set {key}: {TOO_DEEP}") from None
    except ValueError:
        return Assignment(key, value)
    if is_too_deep(parsed):
        raise UsageError(f"--set {key}: {TOO_DEEP}")
    # A line break in VALUE would start another key.
    return Assignment(key, parsed["value"] if len(parsed) == 1 else value)


def dumps(data: Mapping[str, Any]) -> str:
    """Return nested mappings, strings, numbers, booleans and arrays as TOML text.

    Precondition: no None inside. Reading the text gives the same data back.
    """
    return "\n".join(_lines(data, ())).lstrip("\n") + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    if path and (len(inner) < len(table) or not table):
        yield ""
        yield f"[{'.'.join(_key(part) for part in path)}]"
    for key, value in table.items():
        if key not in inner:
            yield f"{_key(key)} = {toml_value(value)}"
    for key, value in inner.items():
        yield from _lines(value, (*path, key))


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _string(key)


def toml_value(value: Any) -> str:
    """Return a value as TOML on one line, which is also valid after ``--set NAME.PARAM=``."""
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # the shortest form that reads back as the same number
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    assert isinstance(value, list | tuple), f"no TOML for {value!r}"
    return "[" + ", ".join(toml_value(item) for item in value) + "]"


def _string(text: str) -> str:
    # JSON escapes what TOML does, except DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
