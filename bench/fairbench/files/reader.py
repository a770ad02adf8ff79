"""The one way to a user's file: plain or ``.gz``, and never more of it than there is memory for.

A file may be endless, or a few megabytes of gzip that hold gigabytes. So what its text will take as
values is estimated before it is parsed, and counted.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO, NamedTuple, cast

from fairbench.errors import DataError, UsageError

MIB = 2**20
VARIABLE = "FAIRBENCH_READ_MIB"
DEFAULT_MIB = 512  # a command then stays below 1 GiB
LARGEST_PART = 8  # of the memory, that one line may fill: it is there three times while parsed

# What CPython 3.11 takes for a line and for what a mark stands for: an object, a list, an entry
# and its number, a key's place, half a text.
_LINE, _TEXT = 200, 32
_MARKS = {b"{": 200, b"[": 96, b",": 48, b":": 40, b'"': _TEXT}
_BEYOND_BMP = re.compile(rb"[\xf0-\xff]|\\u[dD]")


class MissingFile(DataError):
    """There is no file of that name."""


class Line(NamedTuple):
    """A line with its end, and its number from 1."""

    number: int
    data: bytes


class Memory:
    """What one file may take. ``shown`` is what complaints call the file."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self.limit = limit_bytes()
        self._left = self.limit

    @property
    def largest_line(self) -> int:
        """Bytes."""
        return self.limit // LARGEST_PART

    def take(self, size: int) -> None:
        """Count so many bytes. Raises DataError once they are more than the file may take."""
        self._left -= size
        if self._left < 0:
            raise self.too_large()

    def too_large(self) -> DataError:
        """The complaint, which says how to allow it."""
        return DataError(
            f"{self._shown}: is too large: reading it takes more than {self.limit // MIB} MiB of "
            f"memory (the environment variable {VARIABLE} allows more)"
        )


def limit_bytes() -> int:
    """Memory for what is in one file. Raises UsageError if the environment has no number there."""
    text = os.environ.get(VARIABLE, "") or str(DEFAULT_MIB)
    if not re.fullmatch(r"[1-9][0-9]{0,6}", text):
        raise UsageError(f"{VARIABLE} = {text}: must be a whole number of MiB, at least 1")
    return int(text) * MIB


def lines(
    file: Traversable, shown: str, *, blank: bool = False, streamed: bool = False
) -> Iterator[Line]:
    """The lines of a file, without a mark of Windows' editors in front; ``blank`` ones if asked.

    ``streamed``: of a run of ours, or of what is not kept, there may be as many as there are; only
    each is limited.
    Raises DataError: it cannot be read, or is too large.
    """
    memory = Memory(shown)
    most = memory.largest_line
    number = 0
    with opened(file, shown) as stream:
        while data := stream.readline(most + 1):
            number += 1
            if len(data) > most:
                raise memory.too_large()
            if not streamed:
                memory.take(memory_of(data))
            elif memory_of(data) > memory.limit:
                raise memory.too_large()
            if number == 1:
                data = data.removeprefix(b"\xef\xbb\xbf")
            if blank or data.strip():
                yield Line(number, data)


def read_whole(file: Traversable, shown: str) -> bytes:
    """All of a file, which is to be parsed as one. Raises as ``lines`` does."""
    memory = Memory(shown)
    with opened(file, shown) as stream:
        data = stream.read(memory.largest_line + 1)
    if len(data) > memory.largest_line:
        raise memory.too_large()
    memory.take(memory_of(data))
    return data.removeprefix(b"\xef\xbb\xbf")


def digest(file: Path, shown: str) -> str:
    """SHA-256 of a file as it lies there, packed or not. Raises DataError if it cannot be read."""
    if file.exists() and not file.is_file():
        raise DataError(f"{shown}: cannot be read: not a file")
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise MissingFile(f"{shown}: cannot be read: {error.strerror}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{shown}: cannot be read: {error}") from None


def memory_of(text: bytes) -> int:
    """About the most that a text takes as text and as the values of its JSON or CSV, bytes."""
    plain = text.isascii() and b"\\u" not in text
    width = 1 if plain else 4 if _BEYOND_BMP.search(text) else 2
    marks = sum(text.count(mark) * size for mark, size in _MARKS.items())
    return _LINE + width * len(text) + marks


def decoded(data: bytes, where: str) -> str:
    """As text. Raises DataError naming ``where`` if it is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{where}: cannot be read: not UTF-8 text") from None


@contextmanager
def opened(file: Traversable, shown: str) -> Iterator[IO[bytes]]:
    """The file, unpacked if its name ends in ``.gz``. What goes wrong inside is a DataError."""
    try:
        with file.open("rb") as raw:
            if not file.name.endswith(".gz"):
                yield raw
                return
            with gzip.open(raw) as unpacked:
                yield cast(IO[bytes], unpacked)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{shown}: cannot be read: damaged gzip file ({error})") from None
    except FileNotFoundError as error:
        raise MissingFile(f"{shown}: cannot be read: {error.strerror}") from None
    except OSError as error:
        raise DataError(f"{shown}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a name with a zero byte in it
        raise DataError(f"{shown}: cannot be read: {error}") from None
    except MemoryError:
        raise DataError(f"{shown}: cannot be read: not enough memory") from None
