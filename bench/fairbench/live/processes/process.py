"""A server's process and its place: this machine, or a machine that a launcher reaches."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fairbench.live.processes import reaper
from fairbench.live.processes.addresses import LOOPBACK
from fairbench.live.processes.ports import free_ports
from fairbench.live.processes.server_log import cause_in, log_end

GRACE_S = 10.0  # seconds from SIGTERM to SIGKILL
REAPER_MARGIN_S = 5.0  # seconds for the reaper itself to end after that


class Process(Protocol):
    """A server's process, on any machine."""

    @property
    def exit_code(self) -> int | None:
        """The exit code, 128 plus the number of a signal; None while the process runs."""

    @property
    def ending(self) -> str:
        """A few words on how the process ended. Precondition: the process has ended."""

    def log_tail(self) -> str:
        """Return the last lines that the process wrote."""

    def cause(self) -> str:
        """Return the line of the log that explains an end; the last line if none does."""

    def ask_to_stop(self) -> None:
        """Ask the process to end, without waiting."""

    def stop(self) -> None:
        """End the process. Returns when the process has ended or cannot be reached."""


class Place(Protocol):
    """The location of one replica: a machine and possibly some of its GPUs."""

    @property
    def host(self) -> str:
        """The address at which this machine reaches the place."""

    @property
    def listen(self) -> str:
        """The address on which servers at the place listen."""

    @property
    def python(self) -> str:
        """The path of the Python that starts servers on the host."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables for servers at the place, for example for their GPUs."""

    @property
    def is_lost(self) -> bool:
        """Return whether nothing can be started at the place any more."""

    def free_ports(self, count: int) -> list[int]:
        """Return distinct ports that are free at the place. Raises RunFailed."""

    def start(
        self, command: Sequence[str], log_path: Path, environment: Mapping[str, str]
    ) -> Process:
        """Run a command at the place; its output is appended to a file on this machine.

        The process ends at the latest when this process ends, even if killed.
        """


class ServerProcess:
    """A command that runs until ``stop``, until this process ends, or until it ends itself.

    ``stop`` sends SIGTERM, and SIGKILL after the grace period.
    """

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
            # A separate session: Ctrl-C at the terminal goes to the harness, which ends this
            # process.
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
        return self._reaper.poll()

    @property
    def ending(self) -> str:
        return f"exit code {self.exit_code}"

    def log_tail(self) -> str:
        return log_end(self._log_path, self._log_start)

    def cause(self) -> str:
        return cause_in(self._log_path, self._log_start)

    def ask_to_stop(self) -> None:
        assert self._reaper.stdin is not None
        self._reaper.stdin.close()

    def stop(self) -> None:
        self.ask_to_stop()
        try:
            self._reaper.wait(self._grace_s + REAPER_MARGIN_S)
        except subprocess.TimeoutExpired:  # not even SIGKILL ended the server; no more can be done
            self._reaper.kill()
            self._reaper.wait()


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A place on this machine that only this machine can reach."""

    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    host: str = LOOPBACK
    listen: str = LOOPBACK
    is_lost: bool = False

    def free_ports(self, count: int) -> list[int]:
        return free_ports(count)

    def start(
        self, command: Sequence[str], log_path: Path, environment: Mapping[str, str]
    ) -> Process:
        return ServerProcess(command, log_path, environment=environment)


HERE = LocalPlace()
