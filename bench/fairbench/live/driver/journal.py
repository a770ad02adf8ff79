"""Appends records to files as they are made, so that whatever ends the run, they are there."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from fairbench.errors import UsageError
from fairbench.live.records import PROGRAMS_FILE, REQUESTS_FILE, ProgramRecord, RequestRecord


class Journal:
    """Two JSON lines files in a directory. Each record is handed to the system at once.

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
        """Append a request."""
        self._requests.write(self._encode(record) + b"\n")

    def program(self, record: ProgramRecord) -> None:
        """Append a program."""
        self._programs.write(self._encode(record) + b"\n")

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
