"""The entry point of the console script ``fairbench``."""

from __future__ import annotations

import io
import signal
import sys
from types import FrameType

from fairbench.cli.exits import FAILED, Terminated, complain, interrupted


def heed_sigterm() -> None:
    """Treat SIGTERM like Ctrl-C from now on, so that open resources are closed."""

    def end(signum: int, _: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, end)


def main() -> None:
    """Run the command line.

    Exit codes: 0 success, 1 a run or a gate failed, 2 wrong usage, 3 a gate could not judge,
    130/143 signal.
    """
    try:
        heed_sigterm()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # for any characters in a path or name
                stream.reconfigure(errors="backslashreplace")
        if sys.stdout is None:
            complain("standard output is closed")
            sys.exit(FAILED)
        # imported here, because Ctrl-C may come while Python still imports
        from fairbench.cli.app import app

        app()
    except KeyboardInterrupt as error:
        sys.exit(interrupted(error))
