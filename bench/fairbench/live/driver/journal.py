"""The journal: appends records to files at once, so that no record is lost however a run ends."""

from __future__ import annotations

from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from fairbench.errors import RunFailed, UsageError
from fairbench.live.records import PROGRAMS_FILE, REQUESTS_FILE, ProgramRecord, RequestRecord


class Journal:
    """Two JSON lines files in a directory. Each record is written at once.

    Raises UsageError if they cannot be made.
    """

    def __init__(self, directory: Path) -> None:
        try:
            self._requests = (directory / REQUESTS_FILE).open("wb", buffering=0)
            self._programs = (directory / PROGRAMS_FILE).open("wb", buffering=0)
        except OSError as error:
            raise UsageError(f"{directory}: cannot be written: {error.strerror}") from None
        self._encode = msgspec.json.Encoder().encode

    def request(self, record: RequestRecord) -> None:
        """Append a request. Raises RunFailed if that is impossible, such as on a full disk."""
        self._append(self._requests, record)

    def program(self, record: ProgramRecord) -> None:
        """Append a program. Raises as ``request`` does."""
        self._append(self._programs, record)

    def _append(self, file: FileIO, record: msgspec.Struct) -> None:
        try:
            file.write(self._encode(record) + b"\n")
        except OSError as error:
            raise RunFailed(f"{file.name!s}: cannot be written: {error.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._requests.close()
        self._programs.close()
