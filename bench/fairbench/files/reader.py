"""Readers of users' files: lines, whole texts, keys, and Python modules with classes."""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
import time
import traceback
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from importlib.resources.abc import Traversable
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isabstract
from itertools import dropwhile
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple, cast

from fairbench.errors import DataError, FairbenchError, RunFailed, UsageError

MIB = 2**20
VARIABLE = "FAIRBENCH_READ_MIB"
# Reading a file takes at most 512 MiB of memory by default, so that a command needs less than 1
# GiB.
DEFAULT_MIB = 512
# A line may take 1/8 of the memory limit, because parsing keeps three copies of the line.
LARGEST_PART = 8

CHUNK = 2**16
CHECKED = 16 * MIB  # number of unpacked bytes after which the compression ratio is checked
MAX_RATIO = 200  # largest allowed compression ratio; the ratios of logs are at most about 100
GZIP = 31  # argument that tells zlib to expect a gzip header
# A pipe without a writer is checked ``PIPE_TRIES`` times within ``PIPE_WAIT_S`` seconds.
PIPE_WAIT_S, PIPE_TRIES = 0.5, 10

# In CPython 3.11, a parsed line takes ``_LINE`` bytes of memory, plus the bytes in ``_MARKS`` for
# each character that marks an object, a list, an entry, a key or a text.
_LINE, _TEXT = 200, 32
_MARKS = {b"{": 200, b"[": 96, b",": 48, b":": 40, b'"': _TEXT}
MOST_PER_BYTE = 500  # The memory that a line needs is at most this multiple of its size.
_BEYOND_BMP = re.compile(rb"[\xf0-\xff]|\\u[dD]")


class MissingFile(DataError):
    """An error for a file that does not exist."""


class TextLine(NamedTuple):
    """A line of text including its line end, with its line number, counted from 1."""

    number: int
    data: bytes


class ReadMemory:
    """A count of the memory used to read a file, with a limit; messages call the file ``shown``."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self.limit = limit_bytes()
        self._left = self.limit

    @property
    def largest_line(self) -> int:
        """The largest number of bytes that a line of the file may have."""
        return self.limit // LARGEST_PART

    def take_bytes(self, size: int) -> None:
        """Count ``size`` more bytes of memory; raise DataError above the file's limit."""
        self._left -= size
        if self._left < 0:
            raise self.too_large()

    def too_large(self) -> DataError:
        """Return the error for a file that is too large, with advice to raise the limit."""
        return DataError(
            f"{self._shown}: is too large: reading it takes more than {self.limit // MIB} MiB of "
            f"memory (the environment variable {VARIABLE} allows more)"
        )


def limit_bytes() -> int:
    """Return the limit on the memory for reading a file, in bytes.

    Raises UsageError if the environment variable ``VARIABLE`` holds an invalid limit.
    """
    text = os.environ.get(VARIABLE, "") or str(DEFAULT_MIB)
    if not re.fullmatch(r"[1-9][0-9]{0,6}", text):
        raise UsageError(f"{VARIABLE} = {text}: must be a whole number of MiB, at least 1")
    return int(text) * MIB


def files_named(variable: str) -> list[Path]:
    """Return the files that an environment variable lists, as absolute paths."""
    return [
        Path(os.path.realpath(text))
        for text in os.environ.get(variable, "").split(os.pathsep)
        if text
    ]


def lines(
    file: Traversable, shown: str, *, blank: bool = False, streamed: bool = False
) -> Iterator[TextLine]:
    """Yield the lines of a file; remove a byte order mark.

    Blank lines are left out unless ``blank`` is True. If ``streamed`` is True, only the size of a
    line is limited, not the size of the file. Use ``streamed`` for fairbench's own stored runs, and
    for callers that do not keep the lines in memory. Raises DataError if the file is unreadable or
    too large.
    """
    memory = ReadMemory(shown)
    most, least = memory.largest_line, memory.limit // MOST_PER_BYTE
    number = 0
    with opened(file, shown) as stream:
        while data := stream.readline(most + 1):
            number += 1
            if len(data) > most:
                raise memory.too_large()
            if not streamed:
                memory.take_bytes(memory_of(data))
            elif len(data) > least and memory_of(data) > memory.limit:
                raise memory.too_large()
            if number == 1:
                data = data.removeprefix(b"\xef\xbb\xbf")
            if blank or data.strip():
                yield TextLine(number, data)


def read_whole(file: Traversable, shown: str) -> bytes:
    """Return the whole content of a file as bytes.

    Raises DataError if the file is unreadable or too large.
    """
    memory = ReadMemory(shown)
    with opened(file, shown) as stream:
        data = stream.read(memory.largest_line + 1)
    if len(data) > memory.largest_line:
        raise memory.too_large()
    memory.take_bytes(memory_of(data))
    return data.removeprefix(b"\xef\xbb\xbf")


def digest(file: Path, shown: str) -> str:
    """Return the SHA-256 digest of a file; raise DataError if the file cannot be read."""
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
    """Estimate the memory in bytes of a text and its parsed JSON or CSV values."""
    plain = text.isascii() and b"\\u" not in text
    width = 1 if plain else 4 if _BEYOND_BMP.search(text) else 2
    marks = sum(text.count(mark) * size for mark, size in _MARKS.items())
    return _LINE + width * len(text) + marks


def decoded(data: bytes, where: str) -> str:
    """Decode UTF-8 text; raise DataError with the location ``where`` for other data."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{where}: is not UTF-8 text; save it as UTF-8") from None


class Unpacked(io.RawIOBase):
    """A gzip file with a limit on its compression ratio, as a defence against decompression bombs.

    The file may consist of several gzip members, with zero bytes between and after the members.
    """

    def __init__(self, packed: IO[bytes], shown: str) -> None:
        self._packed, self._shown = packed, shown
        self._restart()

    def _restart(self) -> None:
        self._data, self._ready = b"", b""
        self._member: Any = None  # the decompressor of the gzip member that is being read
        self._read, self._taken, self._next_check = 0, 0, CHECKED

    def check_start(self) -> None:
        """Raise DataError if the beginning of the file looks like a decompression bomb."""
        if not self._packed.seekable():
            return
        while self._read < CHECKED and self._next_bytes(CHUNK):
            pass
        self._packed.seek(0)
        self._restart()
        self._next_check = 2 * CHECKED

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._ready = self._ready or self._next_bytes(max(len(buffer), CHUNK))
        part, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def _next_bytes(self, size: int) -> bytes:
        """Return up to ``size`` unpacked bytes, or b"" at the end."""
        while True:
            if not self._data:
                self._data = self._packed.read(CHUNK)
                self._taken += len(self._data)
                if not self._data and self._member is None:
                    return b""
            if self._member is None:
                self._data = self._data.lstrip(b"\0")
                if not self._data:
                    continue
                self._member = zlib.decompressobj(wbits=GZIP)
            elif not self._data:
                raise EOFError("the compressed data are incomplete")
            found: bytes = self._member.decompress(self._data, size)
            self._data = self._member.unconsumed_tail
            if self._member.eof:
                self._data, self._member = self._member.unused_data, None
            if found:
                self._check_ratio(found)
                return found

    def _check_ratio(self, data: bytes) -> None:
        self._read += len(data)
        if self._read >= self._next_check:
            self._next_check = self._read + CHECKED
            if self._packed.seekable() and self._read > MAX_RATIO * self._taken:
                raise DataError(
                    f"{self._shown}: is too large: it grows by more than a factor of "
                    f"{MAX_RATIO} when unpacked; unpack it yourself if this is intended"
                )


def _open_file(file: Traversable, shown: str) -> IO[bytes]:
    """Open a file or a pipe; raise DataError if no process writes to the pipe."""
    if not isinstance(file, Path) or not file.is_fifo():
        return file.open("rb")
    pipe = io.FileIO(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb")
    for _ in range(PIPE_TRIES):
        start = pipe.read(1)
        # ``start`` is None if a process has opened the pipe but has not written yet.
        if start != b"":
            os.set_blocking(pipe.fileno(), True)
            return io.BufferedReader(_Pipe(pipe, start or b""))
        time.sleep(PIPE_WAIT_S / PIPE_TRIES)
    pipe.close()
    raise DataError(f"{shown}: cannot be read: it is a pipe to which no process writes")


class _Pipe(io.RawIOBase):
    """A pipe whose first byte was already read; reading the pipe returns this byte again."""

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
    """Open a file, which is decompressed if its name ends in ``.gz``.

    Raises DataError if reading fails within the ``with`` block.
    """
    try:
        with _open_file(file, shown) as raw:
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
    # Opening a file raises ValueError if the file's name contains a zero byte.
    except ValueError as error:
        raise DataError(f"{shown}: cannot be read: {error}") from None
    except MemoryError:
        raise DataError(f"{shown}: cannot be read: not enough memory") from None


MAX_BYTES = 16 * 2**10


def is_key(text: str) -> bool:
    """Return whether a text is a valid API key; the key is sent in an HTTP header."""
    return text.isascii() and text.isprintable() and text == text.strip() != ""


def read_key(file: Traversable, shown: str) -> str:
    """Return the API key in a file of one line.

    Raises DataError with a message that does not show the API key.
    """
    with opened(file, shown) as stream:
        data = stream.read(MAX_BYTES + 1)
    key = data.decode("utf-8", "replace").strip()
    if len(data) > MAX_BYTES or not is_key(key):
        raise DataError(f"{shown}: must hold a key: one line of printable ASCII")
    return key


_LOADED: set[str] = set()  # paths of the Python files that ``module_of`` has loaded


def module_of(path: Path, named_by: str) -> ModuleType:
    """Load a Python file as a module, once per process, and make the module importable.

    ``named_by`` is the flag or variable that named the file. Raises UsageError if the file cannot
    be run.
    """
    # The hash makes the module's name unique to the path of its file.
    name = f"{path.stem.replace('.', '_')}_{hashlib.sha256(bytes(path)).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"{named_by}: {str(path)!r} is not a Python file")
    module = sys.modules[name] = module_from_spec(spec)
    _LOADED.add(str(path))
    try:
        spec.loader.exec_module(module)
    # A Python file of the user may raise any type of exception.
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UsageError(f"{named_by}: {path}: {type(error).__name__}: {error}") from error
    return module


def classes_in(path: Path, named_by: str, base: type, key: str) -> Iterator[tuple[str, Any]]:
    """Yield the subclasses of ``base`` in a user's file, each with its name in the file.

    The class attribute that ``key`` names, such as ``kind``, contains the name by which users
    select the class. An abstract class that lacks the attribute ``key`` is skipped as a mere base
    class. Raises UsageError if the file cannot be run, or if a class is incomplete.
    """
    module = module_of(path, named_by)
    for name, value in vars(module).items():
        if not (isinstance(value, type) and issubclass(value, base)):
            continue
        is_named = isinstance(getattr(value, key, None), str)
        if value.__module__ != module.__name__ or (isabstract(value) and not is_named):
            continue
        if lacks := _missing_part(value, key):
            raise UsageError(f"{path}: class {name} needs {lacks}")
        yield name, value


def _missing_part(found: Any, key: str) -> str:
    """Return a description of what a user's class lacks, or "" if the class is complete."""
    if not re.fullmatch(r"[\w-]+", str(getattr(found, key, ""))):
        return f'a {key} of letters, digits and -, such as {key} = "mine"'
    if isabstract(found):
        return f"a method {min(found.__abstractmethods__)}"
    if not is_dataclass(getattr(found, "Params", None)):
        return "a dataclass Params, empty if it has no parameters"
    return ""


def failure_in_own_file(error: Exception) -> RunFailed | None:
    """Return RunFailed with the line of a user's file that raised ``error``; None if there is none.

    A note of the RunFailed error has the traceback, which starts at the user's file. If Python
    turned a StopIteration into a RuntimeError, the message names the line that raised the
    StopIteration.
    """
    if isinstance(error, FairbenchError | MemoryError):
        return None
    raised = error if _own_frames(error) or error.__cause__ is None else error.__cause__
    if not (frames := _own_frames(raised)):
        return None
    frame = next(one for one in reversed(frames) if one.filename in _LOADED)
    failed = RunFailed(
        f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}: "
        f"{': '.join(filter(None, (type(raised).__name__, str(raised))))}"
    )
    failed.add_note("".join(traceback.format_list(frames)).rstrip("\n"))
    return failed


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return list(dropwhile(lambda frame: frame.filename not in _LOADED, frames))
