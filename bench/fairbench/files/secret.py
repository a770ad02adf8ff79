"""A key in its own file, which no process list shows."""

from __future__ import annotations

from importlib.resources.abc import Traversable

from fairbench.errors import DataError
from fairbench.files.reader import opened

MAX_BYTES = 16 * 2**10


def is_key(text: str) -> bool:
    """Return whether a text is valid as a key, which must fit in an HTTP header."""
    return text.isascii() and text.isprintable() and text == text.strip() != ""


def read_key(file: Traversable, shown: str) -> str:
    """Read a key: the only line of a file. Raises DataError, which never shows the key."""
    with opened(file, shown) as stream:
        data = stream.read(MAX_BYTES + 1)
    key = data.decode("utf-8", "replace").strip()
    if len(data) > MAX_BYTES or not is_key(key):
        raise DataError(f"{shown}: must hold a key: one line of printable ASCII")
    return key
