"""Server processes: how they start and end, and why a server ended according to its log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from fairbench.errors import printable
from fairbench_load.processes import reaper
from fairbench_load.processes.addresses import LOOPBACK, free_ports
from fairbench_load.processes.environment import WITHOUT_GPU

TAIL_BYTES = 4_000
TAIL_LINES = 20
# The last ``CAUSE_BYTES`` bytes of a server's log are searched for the reason why the server ended.
CAUSE_BYTES = 2**20
LONGEST = 500  # maximum number of characters of a log line that a message quotes

# ``_BEFORE`` matches all prefixes of a log message: a process, a level with a time, a file, a rank.
_BEFORE = re.compile(
    r"^(?:\([^()]{1,80}\) |(?:ERROR|WARNING|INFO|CRITICAL) \d\d-\d\d [\d:]{8} |\[[^\[\]]{1,80}\] )+"
)
_RAISED = re.compile(r"[A-Za-z_][\w.]{0,100}(?:Error|Exception|Exit|Failure): ?\S")
_REFUSED = re.compile(r"(?:\S{1,80}: error: |fairbench: )\S")
_KILLED = re.compile(r"\S.{0,80} (?:was killed by signal|died unexpectedly)")

# A log message that contains a text of ``_ECHOES`` only reports the failure of another process.
_ECHOES = (
    *("See root cause above", "Engine core initialization failed", "EngineDeadError"),
    *("CancelledError", "BrokenPipeError", "ConnectionResetError", "EOFError", "SystemExit"),
    "Rank 0 scheduler died",
)

GPU_MISSING = (
    *("Failed to infer device type", "No accelerator (CUDA", "Found no NVIDIA driver"),
    *("No CUDA GPUs are available", "not compiled with CUDA", "libcuda.so"),
)
"""Texts by which engines report that there is no GPU."""


def log_end(path: Path, begin: int, most: int = TAIL_BYTES, lines: int = TAIL_LINES) -> str:
    """Return at most the last ``lines`` lines and ``most`` bytes of a log.

    Bytes of the log before the position ``begin``, which an earlier process wrote, are ignored.
    """
    with path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(begin, size - most))
        text = log.read().decode("utf-8", "replace")
    return "\n".join(text.splitlines()[-lines:])


def cause_in(path: Path, begin: int) -> str:
    """Return why a server ended, found in the last MiB of its log after the position ``begin``."""
    return cause_of(log_end(path, begin, CAUSE_BYTES, lines=CAUSE_BYTES))


def cause_of(text: str) -> str:
    """Return the message in a log that explains why a server ended.

    The message is the log's last exception, usage error or kill message that is not the consequence
    of another error. If the log has no error message, its last line is returned. If the server
    found no GPU, the message also says how to run without a GPU. Characters that cannot be printed
    are escaped.
    """
    plain = [_BEFORE.sub("", line) for line in text.splitlines() if line.strip()]
    causes = [
        f"{line}: {below.strip()}" if "validation error" in line else line
        for line, below in pairwise([*plain, ""])
        if any(kind.match(line) for kind in (_RAISED, _REFUSED, _KILLED))
        and not any(echo in line for echo in _ECHOES)
    ]
    said = (causes or plain or [""])[-1].strip().removeprefix("fairbench: ")
    said = printable(said)[:LONGEST]
    missing = any(part in line for line in causes for part in GPU_MISSING)
    return f"{said}; {WITHOUT_GPU}" if missing else said


GRACE_S = 10.0
REAPER_MARGIN_S = 5.0  # seconds after the grace period until the reaper is killed


class Process(Protocol):
    """The interface of a server process, local or remote."""

    @property
    def exit_code(self) -> int | None:
        """The exit code (128 plus a signal's number), or None while the process runs."""

    @property
    def ending(self) -> str:
        """A phrase that tells how the process ended, such as its exit status.

        Precondition: the process has ended.
        """

    def log_tail(self) -> str:
        """Return the last lines of the process's output."""

    def cause(self) -> str:
        """Return the log line that explains why the process ended, or the last line of the log."""

    def ask_to_stop(self) -> None:
        """Ask the process to end, and return at once."""

    def stop(self) -> None:
        """End the process; wait until the process has ended or is unreachable."""


class ReplicaPlace(Protocol):
    """The interface of a replica's place: a machine and some of its GPUs."""

    @property
    def host(self) -> str:
        """The address by which this machine reaches the replica's server."""

    @property
    def listen(self) -> str:
        """The address at which the replica's server listens."""

    @property
    def python(self) -> str:
        """The path of the Python interpreter that starts the replica's server."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables for the replica's server, for example to select its GPUs."""

    @property
    def is_lost(self) -> bool:
        """Whether the replica's machine is lost, so that its server cannot be restarted."""

    def free_ports(self, count: int) -> list[int]:
        """Return ``count`` different ports that are free on the replica's machine.

        Raises RunFailed if the machine does not answer.
        """

    def start(
        self, command: Sequence[str], log_path: Path, environment: Mapping[str, str]
    ) -> Process:
        """Run a command on the replica's machine; append its output to a file on this machine.

        If the calling process ends, even by SIGKILL, the started command ends, too.
        """


class ServerProcess:
    """A running command that ends when ``stop`` is called or this process ends.

    ``stop`` sends SIGTERM and, after ``grace_s`` seconds, SIGKILL.
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
        """Start a command under ``reaper.py``, which ends the command when this process ends.

        ``reaped`` means that ``command`` itself starts ``reaper.py``, on another machine.
        """
        under = () if reaped else (sys.executable, "-I", "-S", reaper.__file__, str(grace_s))
        self._log_path = log_path
        self._grace_s = grace_s
        self._log_start = log_path.stat().st_size if log_path.exists() else 0
        with log_path.open("ab") as log:
            # In a separate session, the server does not receive Ctrl-C from the terminal. fairbench
            # itself receives Ctrl-C and ends the server.
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
        # The reaper still waits for the server, which survived SIGKILL, so the reaper is killed.
        except subprocess.TimeoutExpired:
            self._reaper.kill()
            self._reaper.wait()


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """This machine as the place of a replica.

    By default, only programs on this machine can connect to the replica's server.
    """

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
