"""A server process: started under a reaper, with a log file, and reliably ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairbench.live.processes import reaper

GRACE_S = 10.0  # from SIGTERM to SIGKILL
REAPER_MARGIN_S = 5.0  # for the reaper itself to end after that
TAIL_BYTES = 4_000
TAIL_LINES = 20


class ServerProcess:
    """A command that runs until ``stop``, until this process ends, or until it ends itself."""

    def __init__(
        self,
        command: Sequence[str],
        log_path: Path,
        *,
        environment: Mapping[str, str] | None = None,
        grace_s: float = GRACE_S,
        reaped: bool = False,
    ) -> None:
        """Start a command. A ``reaped`` command already has a reaper on its remote machine."""
        under = () if reaped else (sys.executable, "-I", "-S", reaper.__file__, str(grace_s))
        self._log_path = log_path
        self._grace_s = grace_s
        self._log_start = log_path.stat().st_size if log_path.exists() else 0
        with log_path.open("ab") as log:
            # A session of its own: Ctrl-C at the terminal is for the harness, which ends this.
            self._reaper = subprocess.Popen(
                [*under, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """The exit code: None while the process runs.

        128 plus the signal's number after a signal.
        """
        return self._reaper.poll()

    @property
    def ending(self) -> str:
        """The exit code, in words."""
        return f"exit code {self.exit_code}"

    def log_tail(self) -> str:
        """Return the last lines that this process has written."""
        return log_end(self._log_path, self._log_start)

    def ask_to_stop(self) -> None:
        """Ask the process to end, without waiting, so that several can end in parallel."""
        assert self._reaper.stdin is not None
        self._reaper.stdin.close()

    def stop(self) -> None:
        """End the process with SIGTERM, and with SIGKILL after the grace period; wait for it."""
        self.ask_to_stop()
        try:
            self._reaper.wait(self._grace_s + REAPER_MARGIN_S)
        except subprocess.TimeoutExpired:  # not even SIGKILL ended the server; no more can be done
            self._reaper.kill()
            self._reaper.wait()


def log_end(path: Path, begin: int) -> str:
    """Return the last lines of a log after byte ``begin``; earlier bytes are not this process's."""
    with path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(begin, size - TAIL_BYTES))
        text = log.read().decode("utf-8", "replace")
    return "\n".join(text.splitlines()[-TAIL_LINES:])
