"""A key in a file of its own, where no list of processes shows it."""

from __future__ import annotations

from importlib.resources.abc import Traversable

from fairbench.errors import DataError
from fairbench.files.reader import opened

MAX_BYTES = 16 * 2**10


def is_key(text: str) -> bool:
    """Whether it can be a key, which has to travel in a header."""
    return text.isascii() and text.isprintable() and text == text.strip() != ""


def read_key(file: Traversable, shown: str) -> str:
    """The one line of a file. Raises DataError, which never shows it."""
    with opened(file, shown) as stream:
        data = stream.read(MAX_BYTES + 1)
    key = data.decode("utf-8", "replace").strip()
    if len(data) > MAX_BYTES or not is_key(key):
        raise DataError(f"{shown}: must hold a key: one line of printable ASCII")
    return key
