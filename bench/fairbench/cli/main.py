"""The entry point of the console script ``fairbench``."""

from __future__ import annotations

import io
import sys

from fairbench.cli.exits import FAILED, complain, heed_sigterm, interrupted


def main() -> None:
    """Run the command line.

    Exit codes: 0 success, 1 a run failed, 2 wrong usage, 130/143 signal.
    """
    try:
        heed_sigterm()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # whatever a path or name has in it
                stream.reconfigure(errors="backslashreplace")
        if sys.stdout is None:
            complain("standard output is closed")
            sys.exit(FAILED)
        from fairbench.cli.app import app  # in here: Ctrl-C may come while Python still imports

        app()
    except KeyboardInterrupt as error:
        sys.exit(interrupted(error))
