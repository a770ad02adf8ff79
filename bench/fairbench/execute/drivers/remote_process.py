"""The process of a driver on another machine: connects back, and sends its records.

    python -m fairbench.execute.drivers.remote_process HOST PORT NUMBER

The key is passed in the environment, which no list of processes shows.
"""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from multiprocessing.connection import Client, Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fairbench.errors import FairbenchError
from fairbench.execute.drivers.process import Begin, Failed, serve
from fairbench.execute.drivers.sharded import Written
from fairbench.execute.sent_files import SentFiles
from fairbench.live.records import PROGRAMS_FILE, REQUESTS_FILE

KEY = "FAIRBENCH_DRIVER_KEY"


class Telling:
    """A pipe that sends the records that the driver writes into a folder.

    The records are sent before the next message, a few times a second.
    """

    def __init__(self, pipe: Connection, folder: Path) -> None:
        self._pipe, self._folder = pipe, folder
        self._told = dict.fromkeys((REQUESTS_FILE, PROGRAMS_FILE), 0)

    def recv(self) -> Any:
        """Receive the next message."""
        message = self._pipe.recv()
        return message._replace(folder=self._folder) if isinstance(message, Begin) else message

    def send(self, message: Any, /) -> None:
        """Send a message after all earlier records. Call this from one thread only."""
        for name, told in self._told.items():
            if not (path := self._folder / name).exists():
                continue
            with path.open("rb") as file:
                file.seek(told)
                if lines := file.read():
                    self._pipe.send(Written(name, lines))
            self._told[name] += len(lines)
        self._pipe.send(message)


def main(host: str, port: str, number: str) -> None:
    """Connect, identify this driver, receive its work, and drive."""
    key = bytes.fromhex(os.environ.pop(KEY))
    with (
        suppress(EOFError, OSError),  # the other end has closed the connection
        Client((host, int(port)), authkey=key) as pipe,
        TemporaryDirectory(prefix="fairbench-") as temporary,
    ):
        pipe.send(int(number))
        sent_files: SentFiles = pipe.recv()
        inside, records = Path(temporary, "in"), Path(temporary, "records")
        inside.mkdir()
        records.mkdir()
        try:
            sent_files.check(platform.node())
        except FairbenchError as error:
            pipe.send(Failed(error))
            return
        with sent_files.unpacked(inside):
            serve(Telling(pipe, records))


if __name__ == "__main__":
    main(*sys.argv[1:])
