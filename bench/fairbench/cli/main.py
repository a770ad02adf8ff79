"""The entry point of the console script ``fairbench``."""

from __future__ import annotations

import io
import signal
import sys
from types import FrameType

from fairbench.cli.exits import FAILED, Terminated, complain, interrupted


def heed_sigterm() -> None:
    """Let SIGTERM raise an exception, as Ctrl-C does, so that open resources are closed."""

    def end(signum: int, _: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, end)


def main() -> None:
    """Run the command line of fairbench.

    The exit codes are 0 (success), 1 (a run or a check failed), 2 (wrong usage), 3 (a check reached
    no verdict), and 130 or 143 (ended by a signal).
    """
    try:
        heed_sigterm()
        for stream in (sys.stdout, sys.stderr):
            # Characters that the encoding of standard output lacks are printed as escape sequences.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        if sys.stdout is None:
            complain("standard output is closed")
            sys.exit(FAILED)
        # The import stands inside ``try``, because the user may press Ctrl-C during the imports.
        from fairbench.cli.app import app

        app()
    except KeyboardInterrupt as error:
        sys.exit(interrupted(error))
