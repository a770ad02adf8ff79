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
        """How it ended, in a few words. Precondition: it has."""
        ...

    def log_tail(self) -> str:
        """The last lines that it has written."""
        ...

    def ask_to_stop(self) -> None:
        """Begin to end it, without waiting."""
        ...

    def stop(self) -> None:
        """End it. Returns when it is gone, or can no longer be reached."""
        ...


class Place(Protocol):
    """Where one replica runs: one machine, and there maybe some of its GPUs."""

    @property
    def host(self) -> str:
        """Where it is reached from here."""
        ...

    @property
    def listen(self) -> str:
        """The address that servers there listen on."""
        ...

    @property
    def python(self) -> str:
        """What servers there are started with."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """What servers there have to be told, such as which GPUs are theirs."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be started there any more."""
        ...

    def free_ports(self, count: int) -> list[int]:
        """So many different ports that were free there just now. Raises RunFailed."""
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
    """This machine, which only itself can reach."""

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
        """A child of this process."""
        return ServerProcess(command, log_path, environment=environment)


HERE = LocalPlace()
