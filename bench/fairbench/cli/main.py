"""The ``fairbench`` command: what its console script calls."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable

FAILED, USAGE, INTERRUPTED = 1, 2, 130
STDOUT = 1  # its file descriptor


def main() -> None:
    """Run the command line; exits 0 fine, 1 a run failed, 2 wrong usage, 130 interrupted."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # whatever a path or name has in it
                stream.reconfigure(errors="backslashreplace")
        if sys.stdout is None:
            complain("standard output is closed")
            sys.exit(FAILED)
        from fairbench.cli.app import app  # in here: Ctrl-C may come while Python still imports

        app()
    except KeyboardInterrupt:
        complain("interrupted")
        sys.exit(INTERRUPTED)


def complain(message: str, notes: Iterable[str] = ()) -> None:
    """One line on stderr, and under it notes, such as the end of a server's log, as they are."""
    print(f"fairbench: {' '.join(message.split())}", *notes, sep="\n", file=sys.stderr)


def discard_output() -> None:
    """From here on standard output goes nowhere, so that Python's own last flush cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
