"""The ``fairbench`` command: what its console script calls."""

from __future__ import annotations

import io
import sys

from fairbench.cli.exits import FAILED, INTERRUPTED, complain


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
