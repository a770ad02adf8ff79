"""A file to which runs add a JSON line each, as sglang.bench_serving does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairbench.errors import UsageError


def check_appendable(path: Path) -> None:
    """Raise UsageError unless lines can be added to a file. Makes none."""
    is_new = not path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise _unwritable(path, error) from None
    if is_new:
        path.unlink()


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Add the line to a file, as SGLang does. Raises UsageError if that cannot be written."""
    text = json.dumps(line, allow_nan=False) + "\n"
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"--output-file {path}: cannot be written: {error.strerror}")
