"""A file to which each run appends a JSON line, as in sglang.bench_serving."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairbench.errors import UsageError


def check_appendable(path: Path) -> None:
    """Raise UsageError unless lines can be appended to a file. Creates no file."""
    is_new = not path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise _unwritable(path, error) from None
    if is_new:
        path.unlink()


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append the line to a file, completely or not at all.

    Raises UsageError if the line cannot be written.
    """
    text = json.dumps(line, allow_nan=False) + "\n"
    try:
        with path.open("ab", buffering=0) as file:
            _append(file, text.encode())
    except OSError as error:
        raise _unwritable(path, error) from None


def _append(file: io.FileIO, data: bytes) -> None:
    """Append the data; remove a part that did not fit on the disk."""
    before = file.seek(0, os.SEEK_END) if file.seekable() else None
    try:
        while data:
            data = data[file.write(data) :]
    except OSError:
        if before is not None:
            with suppress(OSError):
                file.truncate(before)
        raise


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"--output-file {path}: cannot be written: {error.strerror}")
