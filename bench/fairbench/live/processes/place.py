"""The place where a server runs: this machine, or a machine that a launcher reaches."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fairbench.live.processes.addresses import LOOPBACK, free_ports
from fairbench.live.processes.process import ServerProcess


class Process(Protocol):
    """A server's process, on any machine."""

    @property
    def exit_code(self) -> int | None:
        """The exit code: None while the process runs.

        128 plus the signal's number after a signal.
        """
        ...

    @property
    def ending(self) -> str:
        """A few words on how the process ended. Precondition: the process has ended."""
        ...

    def log_tail(self) -> str:
        """Return the last lines that the process wrote."""
        ...

    def ask_to_stop(self) -> None:
        """Ask the process to end, without waiting."""
        ...

    def stop(self) -> None:
        """End the process. Returns when it is gone, or is not reachable any more."""
        ...


class Place(Protocol):
    """The location of one replica: a machine and possibly some of its GPUs."""

    @property
    def host(self) -> str:
        """The address at which this machine reaches the place."""
        ...

    @property
    def listen(self) -> str:
        """The address on which servers at the place listen."""
        ...

    @property
    def python(self) -> str:
        """The path of the Python that starts servers on the host."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables for servers at the place, for example for their GPUs."""
        ...

    @property
    def is_lost(self) -> bool:
        """Return whether nothing can be started at the place any more."""
        ...

    def free_ports(self, count: int) -> list[int]:
        """Return distinct ports that are free at the place. Raises RunFailed."""
        ...

    def start(
        self, command: Sequence[str], log_path: Path, environment: Mapping[str, str]
    ) -> Process:
        """Run a command at the place; its output is appended to a file on this machine.

        It ends at the latest when this process does, in whatever way.

        Args:
            command: Words of the command.
            log_path: File on this machine that gets the output.
            environment: Environment variables to set for the command.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A place on this machine that only this machine can reach."""

    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    host: str = LOOPBACK
    listen: str = LOOPBACK
    is_lost: bool = False

    def free_ports(self, count: int) -> list[int]:
        """Return distinct free ports of this machine."""
        return free_ports(count)

    def start(
        self, command: Sequence[str], log_path: Path, environment: Mapping[str, str]
    ) -> Process:
        """Start a child of this process.

        Args:
            command: Words of the command.
            log_path: File that gets the output.
            environment: Environment variables to set for the command.
        """
        return ServerProcess(command, log_path, environment=environment)


HERE = LocalPlace()
