"""TOML: files, bundled or of users, and writing TOML, which the standard library lacks.

Files hold texts, truths, 64-bit numbers and lists of these.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fairbench.errors import TOO_DEEP, DataError, is_too_deep, shortened, unknown_name
from fairbench.files.json_text import INTEGERS
from fairbench.files.reader import MIB, opened

LONG_KEY = 200  # most parts of a key
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DEEP_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{LONG_KEY},}}")
"""A key with so many parts that tomllib takes gigabytes; shorter keys are counted later."""

MAX_BYTES = 4 * MIB  # tomllib takes a hundred times as much memory for tables, and is slow


def is_path(ref: str) -> bool:
    """Return whether a text is the path of a TOML file, not the name of a bundled one."""
    return ref.endswith(".toml") or "/" in ref or "\\" in ref


def bundled_names(folder: Traversable) -> list[str]:
    """Return the names of the bundled files in a folder, in alphabetical order."""
    found = (entry.name for entry in folder.iterdir())
    return sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml"))


def file_of(kind: str, ref: str, folder: Traversable) -> tuple[Traversable, str]:
    """Return a file by path, or by name in a folder of bundled files, and its name in messages.

    Raises UsageError for an unknown name.
    """
    if is_path(ref):
        return Path(ref), ref
    if ref not in (names := bundled_names(folder)):
        raise unknown_name(kind, ref, names)
    return folder / f"{ref}.toml", f"{ref}.toml"


def read_toml(file: Traversable, shown: str, *, secret: bool = False) -> dict[str, Any]:
    """Return the tables of a TOML file, which error messages call ``shown``.

    Raises DataError, ``FILE: line N: what is wrong: the line`` (without the line if ``secret``), or
    the reason why the file is unreadable. Dates and larger integers are rejected, since no key of
    ours takes them.
    """
    text = _text(file, shown)
    if found := _DEEP_KEY.search(text):
        raise DataError(f"{shown}: line {text.count(chr(10), 0, found.start()) + 1}: {TOO_DEEP}")
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise DataError(f"{shown}: {TOO_DEEP}") from None
    # TOMLDecodeError, and ValueError for integers of thousands of digits
    except ValueError as error:
        if text.lstrip().startswith("{"):
            raise DataError(f"{shown}: is JSON, and must be TOML: lines KEY = VALUE") from None
        raise DataError(f"{shown}: {_place(str(error), text, secret=secret)}") from None
    except MemoryError:
        raise DataError(f"{shown}: not enough memory to read it") from None
    if is_too_deep(data):
        raise DataError(f"{shown}: {TOO_DEEP}")
    for key, reason in _unusable(data, ""):
        raise DataError(f"{shown}: {reason}" if secret else f"{shown}: {key}: {reason}")
    return data


def _text(file: Traversable, shown: str) -> str:
    with opened(file, shown) as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise DataError(f"{shown}: is too large: at most {MAX_BYTES // MIB} MiB")
    try:
        return data.decode("utf-8-sig")  # editors on Windows write a byte order mark first
    except UnicodeDecodeError:
        raise DataError(f"{shown}: cannot be read: not UTF-8 text") from None


def _unusable(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield the values of other types, with the reason."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _unusable(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _unusable(inner, key)
    elif isinstance(value, int):
        if value not in INTEGERS:
            yield key, "an integer must fit 64 bits"
    elif not isinstance(value, str | float):
        yield key, f"must not be a date or a time ({value})"


def _place(message: str, text: str, *, secret: bool) -> str:
    """Return the parser's error in the form ``line 3: Invalid value: dp = = 4``."""
    lines = text.rstrip("\n").split("\n")
    found = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)", message)
    if found is None:
        return message.partition("; use sys.")[0]
    number = int(found[1]) if found[1] else len(lines)
    where = f"line {number}: {message.replace(found[0], '')}"
    return where if secret else f"{where}: {shortened(lines[number - 1].strip())}"


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
