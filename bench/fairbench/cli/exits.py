"""Exit codes, and the last message that a command prints on stderr."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable

from fairbench.errors import printable, printable_lines

FAILED, USAGE, NOT_JUDGED, INTERRUPTED, TERMINATED = 1, 2, 3, 130, 143
# functions of typer and rich that print text
PRINTS = ("echo", "print", "flush", "write", "_write_buffer")
STDOUT = 1  # the file descriptor of standard output


def complain(message: str, notes: Iterable[str] = ()) -> None:
    """Print an error message and ``notes``, such as the end of a server's log, on stderr."""
    line = printable(" ".join(message.split()))
    print(f"fairbench: {line}", *map(printable_lines, notes), sep="\n", file=sys.stderr)


class Terminated(KeyboardInterrupt):
    """An exception that ends the process after SIGTERM."""


def interrupted(error: KeyboardInterrupt) -> int:
    """Print which signal ended the command.

    Return the exit code, which is 128 plus the signal's number.
    """
    terminated = isinstance(error, Terminated)
    complain("terminated" if terminated else "interrupted")
    return TERMINATED if terminated else INTERRUPTED


def written_file(error: OSError) -> str:
    """Return the name of the output that could not be written, for an error message.

    If the error names no file, the result is "standard output" if a function in ``PRINTS`` raised
    the error, and "a file" otherwise.
    """
    if error.filename is not None:
        return str(error.filename)
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return "standard output" if frame.f_code.co_name in PRINTS else "a file"


def discard_output() -> None:
    """Discard all further standard output, so that Python's flush at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
