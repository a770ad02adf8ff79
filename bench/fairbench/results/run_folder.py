"""The run folder: logs and records while a run is in progress."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairbench.errors import UsageError

FOLDER = "live"  # of a live run's directory
LOCK_FILE = ".lock"


@contextmanager
def run_folder(directory: Path, name: str = FOLDER) -> Iterator[Path]:
    """Open the folder of a run, created if needed, for one process at a time.

    Raises UsageError while another process holds the folder. The system releases it when that
    process dies.
    """
    folder = directory / name
    folder.mkdir(exist_ok=True)
    with (folder / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{directory}: this run still goes on in another process; wait for its end"
            ) from None
        yield folder
