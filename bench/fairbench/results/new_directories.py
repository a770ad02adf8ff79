"""Creation of directories for results, and a lock on the directory of a run."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from fairbench.errors import UsageError, writing


def check_writable(parent: Path, named: str = "result_dir") -> None:
    """Raise UsageError if no directory can be created in the directory ``parent``.

    ``named`` is the name of the directory in error messages.
    """
    with writing(parent, named):
        existing = next(path for path in (parent, *parent.parents) if _exists(path))
        for part in parent.parts:
            # ``_exists`` raises OSError for a name that is too long for the file system.
            _exists(existing / part)
        with tempfile.TemporaryDirectory(dir=existing, prefix=".check-"):
            pass


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add a file name to an OSError without a file name, such as the error of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def removing_new_folders(parent: Path) -> Iterator[None]:
    """Create ``parent`` and its parents; remove the new folders if the ``with`` block fails.

    Existing folders are never removed. Raises UsageError if a folder cannot be created.
    """
    new: list[Path] = []
    try:
        with writing(parent, "result_dir"):
            for path in (*reversed(parent.parents), parent):
                if not _exists(path):
                    path.mkdir(exist_ok=True)
                    new.append(path)
        yield
    except BaseException:
        for path in reversed(new):
            # The folder ``path`` is kept if another run has written into it.
            with suppress(OSError):
                path.rmdir()
        raise


@contextmanager
def making_parents(parent: Path) -> Iterator[None]:
    """Create ``parent`` like ``removing_new_folders``, but turn an OSError into a UsageError."""
    with writing(parent, "result_dir"), removing_new_folders(parent):
        yield


def fresh_directory(parent: Path, name: str) -> Path:
    """Create an empty directory in ``parent`` with the first free name of ``name``, ``name.2`` etc.

    Raises UsageError if the directory cannot be created; then no new folder remains.
    """
    with making_parents(parent):
        for target in _names(parent / name):
            with suppress(FileExistsError):
                target.mkdir()
                return target
    raise AssertionError("names never end")


def _names(wanted: Path) -> Iterator[Path]:
    yield wanted
    for number in count(2):
        yield wanted.with_name(f"{wanted.name}.{number}")


def renamed_to_fresh(hidden: Path, wanted: Path) -> Path:
    """Rename a directory to the first free name of ``wanted``, ``wanted.2`` and so on."""
    for target in _names(wanted):
        if not target.exists():
            try:
                return hidden.rename(target)
            except OSError:
                # Another run may have created a directory of this name in the meantime.
                if not target.exists():
                    raise
    raise AssertionError("names never end")


FOLDER = "live"
LOCK_FILE = ".lock"


@contextmanager
def run_folder(directory: Path, name: str = FOLDER) -> Iterator[Path]:
    """Lock the folder of a run in progress for this process; create the folder if it is missing.

    Raises UsageError if another process has locked the folder. The system releases the lock when
    the process that locked the folder dies.
    """
    folder = directory / name
    folder.mkdir(exist_ok=True)
    with (folder / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{directory}: another process is executing this run; wait until it ends"
            ) from None
        yield folder
