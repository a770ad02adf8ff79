"""Exit codes: how the command ends, and what is said on stderr before."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from fairbench.errors.printable import printable, printable_lines

FAILED, USAGE, INTERRUPTED = 1, 2, 130
STDOUT = 1  # its file descriptor


def complain(message: str, notes: Iterable[str] = ()) -> None:
    """One line on stderr, and under it notes, such as the end of a server's log."""
    line = printable(" ".join(message.split()))
    print(f"fairbench: {line}", *map(printable_lines, notes), sep="\n", file=sys.stderr)


def discard_output() -> None:
    """From here on standard output goes nowhere, so that Python's own last flush cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
