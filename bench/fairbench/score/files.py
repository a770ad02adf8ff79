"""Files of other people's records: JSON lines, JSON, or parquet, ``.gz`` or not.

A file is read as a list of objects, whatever is in them; ``layout`` says what they mean.
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from fairbench.errors import DataError
from fairbench.results.store import read_parquet

Object = dict[str, Any]


def read_objects(path: Path) -> list[tuple[str, Object]]:
    """The objects of a file and where each stands (``FILE, line 3``); of parquet, its rows.

    Raises DataError if the file cannot be read, or naming the line that is no JSON object.
    """
    if path.suffix == ".parquet":
        return [(f"{path}, row {n}", row) for n, row in enumerate(_parquet_rows(path), start=1)]
    text = _text(path)
    whole = _whole_object(text)
    if whole is not None:
        return [(str(path), whole)]
    objects = [
        (f"{path}, line {number}", _object(line, f"{path}, line {number}"))
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    ]
    if not objects:
        raise DataError(f"{path}: no records")
    return objects


def _parquet_rows(path: Path) -> list[Object]:
    rows: list[Object] = read_parquet(path).to_pylist()
    if not rows:
        raise DataError(f"{path}: no records")
    return rows


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{path}: cannot be read: {reason}") from None


def _whole_object(text: str) -> Object | None:
    """The one object that a file holds, on however many lines; None if it is not like that."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _object(line: str, where: str) -> Object:
    try:
        content = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {getattr(error, 'msg', error)}") from None
    except RecursionError:
        raise DataError(f"{where}: nested too deeply") from None
    if not isinstance(content, dict):
        raise DataError(f"{where}: must be a JSON object")
    return content
