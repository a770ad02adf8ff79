"""The place where a server runs: this machine, or another one that a launcher reaches."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fairbench.live.processes.addresses import LOOPBACK, free_ports
from fairbench.live.processes.process import ServerProcess


class Process(Protocol):
    """A server's process, wherever it runs."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 plus the signal's number if one ended it."""
        ...

    @property
    def ending(self) -> str:
        """The way the process ended, in a few words. Precondition: it has ended."""
        ...

    def log_tail(self) -> str:
        """Return the last lines that the process wrote."""
        ...

    def ask_to_stop(self) -> None:
        """Begin to end it, without waiting."""
        ...

    def stop(self) -> None:
        """End it. Returns when it is gone, or can no longer be reached."""
        ...


class Place(Protocol):
    """The location of one replica: a machine and possibly some of its GPUs."""

    @property
    def host(self) -> str:
        """The address at which the place is reached from here."""
        ...

    @property
    def listen(self) -> str:
        """The address that servers there listen on."""
        ...

    @property
    def python(self) -> str:
        """The Python that starts servers there."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables for servers there, such as which GPUs are theirs."""
        ...

    @property
    def is_lost(self) -> bool:
        """Return whether nothing can be started there any more."""
        ...

    def free_ports(self, count: int) -> list[int]:
        """Return distinct ports that are free there at present. Raises RunFailed."""
        ...

    def start(
        self, command: Sequence[str], log_path: Path, environment: Mapping[str, str]
    ) -> Process:
        """Run a command there; its output is appended to a file here.

        It ends at the latest when this process does, in whatever way.
        """
        ...


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A place on this machine, reachable only from this machine."""

    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    host: str = LOOPBACK
    listen: str = LOOPBACK
    is_lost: bool = False

    def free_ports(self, count: int) -> list[int]:
        """Different ports of this machine."""
        return free_ports(count)

    def start(
        self, command: Sequence[str], log_path: Path, environment: Mapping[str, str]
    ) -> Process:
        """Start a child of this process."""
        return ServerProcess(command, log_path, environment=environment)


HERE = LocalPlace()
