"""Reading of a user's file, plain or ``.gz``, within a memory limit.

A file may be endless, or a few megabytes of gzip that hold gigabytes. The memory of the parsed
values is therefore estimated before parsing, and counted.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from fairbench.errors import DataError, UsageError

MIB = 2**20
VARIABLE = "FAIRBENCH_READ_MIB"
DEFAULT_MIB = 512  # a command then stays below 1 GiB
LARGEST_PART = 8  # part of the memory that one line may fill, because parsing holds it three times

CHUNK = 2**16  # bytes read at a time, if none are kept
CHECKED = 16 * MIB  # unpacked bytes after which the ratio to the packed size is checked
MAX_RATIO = 200  # logs are up to a hundred times as long as their packed form
GZIP = 31  # zlib's sign for the header of gzip
PIPE_WAIT_S, PIPE_TRIES = 0.5, 10  # how long to wait for the writer of a pipe

# Memory of CPython 3.11 per line, and per punctuation mark (an object, a list, an entry and its
# number, a key, half of a text).
_LINE, _TEXT = 200, 32
_MARKS = {b"{": 200, b"[": 96, b",": 48, b":": 40, b'"': _TEXT}
MOST_PER_BYTE = 500  # more bytes of memory than a byte of any line takes
_BEYOND_BMP = re.compile(rb"[\xf0-\xff]|\\u[dD]")


class MissingFile(DataError):
    """There is no file with this name."""


class Line(NamedTuple):
    """A line with its end, and its number from 1."""

    number: int
    data: bytes


class Memory:
    """The memory limit of one file. ``shown`` is the name of the file in error messages."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self.limit = limit_bytes()
        self._left = self.limit

    @property
    def largest_line(self) -> int:
        """The largest length of a line, in bytes."""
        return self.limit // LARGEST_PART

    def take(self, size: int) -> None:
        """Count bytes. Raises DataError if they exceed the file's limit."""
        self._left -= size
        if self._left < 0:
            raise self.too_large()

    def too_large(self) -> DataError:
        """Return the error for a file that is too large, which says how to raise the limit."""
        return DataError(
            f"{self._shown}: is too large: reading it takes more than {self.limit // MIB} MiB of "
            f"memory (the environment variable {VARIABLE} allows more)"
        )


def limit_bytes() -> int:
    """Return the memory limit of a file. Raises UsageError for an invalid variable."""
    text = os.environ.get(VARIABLE, "") or str(DEFAULT_MIB)
    if not re.fullmatch(r"[1-9][0-9]{0,6}", text):
        raise UsageError(f"{VARIABLE} = {text}: must be a whole number of MiB, at least 1")
    return int(text) * MIB


def files_named(variable: str) -> list[Path]:
    """Return the files that a variable of the environment names, as absolute paths."""
    return [
        Path(os.path.realpath(text))
        for text in os.environ.get(variable, "").split(os.pathsep)
        if text
    ]


def lines(
    file: Traversable, shown: str, *, blank: bool = False, streamed: bool = False
) -> Iterator[Line]:
    """Yield the lines of a file, without a byte order mark; ``blank`` includes blank lines.

    ``streamed`` is for our own runs, and for content that is not kept: only each line is limited in
    size, not the whole file. Raises DataError if the file is unreadable or too large.
    """
    memory = Memory(shown)
    most, least = memory.largest_line, memory.limit // MOST_PER_BYTE
    number = 0
    with opened(file, shown) as stream:
        while data := stream.readline(most + 1):
            number += 1
            if len(data) > most:
                raise memory.too_large()
            if not streamed:
                memory.take(memory_of(data))
            elif len(data) > least and memory_of(data) > memory.limit:
                raise memory.too_large()
            if number == 1:
                data = data.removeprefix(b"\xef\xbb\xbf")
            if blank or data.strip():
                yield Line(number, data)


def read_whole(file: Traversable, shown: str) -> bytes:
    """Read a whole file that is to be parsed at once. Raises the errors of ``lines``."""
    memory = Memory(shown)
    with opened(file, shown) as stream:
        data = stream.read(memory.largest_line + 1)
    if len(data) > memory.largest_line:
        raise memory.too_large()
    memory.take(memory_of(data))
    return data.removeprefix(b"\xef\xbb\xbf")


def digest(file: Path, shown: str) -> str:
    """Return the SHA-256 of a file as stored. Raises DataError if it is unreadable."""
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
    """Estimate the memory of a text and of its JSON or CSV values, in bytes."""
    plain = text.isascii() and b"\\u" not in text
    width = 1 if plain else 4 if _BEYOND_BMP.search(text) else 2
    marks = sum(text.count(mark) * size for mark, size in _MARKS.items())
    return _LINE + width * len(text) + marks


def decoded(data: bytes, where: str) -> str:
    """Decode UTF-8 text. Raises DataError naming ``where`` if it is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{where}: cannot be read: not UTF-8 text: save it as UTF-8") from None


class Unpacked(io.RawIOBase):
    """A gzip file with a limit on its compression ratio, against decompression bombs.

    Members follow each other; zeros between and after them are padding.
    """

    def __init__(self, packed: IO[bytes], shown: str) -> None:
        self._packed, self._shown = packed, shown
        self._restart()

    def _restart(self) -> None:
        self._data, self._ready = b"", b""
        self._member: Any = None  # what unpacks the current member
        self._read, self._taken, self._next_check = 0, 0, CHECKED

    def check_start(self) -> None:
        """Raise DataError if the beginning looks like a decompression bomb."""
        if not self._packed.seekable():
            return
        while self._read < CHECKED and self._next(CHUNK):
            pass
        self._packed.seek(0)
        self._restart()
        self._next_check = 2 * CHECKED

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._ready = self._ready or self._next(max(len(buffer), CHUNK))
        part, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def _next(self, size: int) -> bytes:
        """Return the next unpacked bytes, at most ``size``; none at the end."""
        while True:
            if not self._data:
                self._data = self._packed.read(CHUNK)
                self._taken += len(self._data)
            if self._member is None:
                self._data = self._data.lstrip(b"\0")
                if not self._data:
                    if self._ended():
                        return b""
                    continue
                self._member = zlib.decompressobj(wbits=GZIP)
            elif not self._data:
                raise EOFError("it ends in the middle")
            found: bytes = self._member.decompress(self._data, size)
            self._data = self._member.unconsumed_tail
            if self._member.eof:
                self._data, self._member = self._member.unused_data, None
            if found:
                self._count(found)
                return found

    def _ended(self) -> bool:
        self._data = self._packed.read(CHUNK)
        self._taken += len(self._data)
        return not self._data

    def _count(self, data: bytes) -> None:
        self._read += len(data)
        if self._read >= self._next_check:
            self._next_check = self._read + CHECKED
            if self._packed.seekable() and self._read > MAX_RATIO * self._taken:
                raise DataError(
                    f"{self._shown}: is too large: it grows by more than a factor of "
                    f"{MAX_RATIO} when unpacked; unpack it yourself if this is intended"
                )


def _opened(file: Traversable, shown: str) -> IO[bytes]:
    """Open a file or a pipe. Raises DataError for a pipe without a writer."""
    if not isinstance(file, Path) or not file.is_fifo():
        return file.open("rb")
    pipe = io.FileIO(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb")
    for _ in range(PIPE_TRIES):
        start = pipe.read(1)
        if start != b"":  # None means that the writer has not written yet
            os.set_blocking(pipe.fileno(), True)
            return io.BufferedReader(_Pipe(pipe, start or b""))
        time.sleep(PIPE_WAIT_S / PIPE_TRIES)
    pipe.close()
    raise DataError(f"{shown}: cannot be read: it is a pipe to which no process writes")


class _Pipe(io.RawIOBase):
    """A pipe whose beginning has been read."""

    def __init__(self, pipe: io.FileIO, start: bytes) -> None:
        self._pipe, self._start = pipe, start

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if not self._start:
            return self._pipe.readinto(buffer)
        buffer[: len(self._start)] = self._start
        read, self._start = len(self._start), b""
        return read

    def close(self) -> None:
        self._pipe.close()
        super().close()


@contextmanager
def opened(file: Traversable, shown: str) -> Iterator[IO[bytes]]:
    """Open a file, decompressed if its name ends in ``.gz``; errors inside become DataError."""
    try:
        with _opened(file, shown) as raw:
            if not file.name.endswith(".gz"):
                yield raw
                return
            unpacked = Unpacked(raw, shown)
            unpacked.check_start()
            yield cast(IO[bytes], io.BufferedReader(unpacked, CHUNK))
    except (EOFError, zlib.error) as error:
        raise DataError(f"{shown}: cannot be read: damaged gzip file ({error})") from None
    except FileNotFoundError as error:
        raise MissingFile(f"{shown}: cannot be read: {error.strerror}") from None
    except OSError as error:
        raise DataError(f"{shown}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a name that contains a zero byte
        raise DataError(f"{shown}: cannot be read: {error}") from None
    except MemoryError:
        raise DataError(f"{shown}: cannot be read: not enough memory") from None


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
