"""Servers on hosts that a user's command reaches, such as ``ssh {host}``."""

from __future__ import annotations

import shlex
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fairbench.errors import RunFailed, UsageError, printable
from fairbench.live.launchers import probe
from fairbench.live.launchers.base import Wanted
from fairbench.live.processes import reaper
from fairbench.live.processes.gpus import VISIBLE
from fairbench.live.processes.process import GRACE_S, Place, Process, ServerProcess

HOST = "{host}"
ANYWHERE = "0.0.0.0"  # on the host itself, its own name may mean the loopback address
ASK_S = 120.0  # a first import from a cold, distant file system takes long

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reach:
    """A way to run a shell line on one host."""

    words: tuple[str, ...]
    host: str

    def line(self, command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """Return the words to run here so that the command runs on the host.

        The command is passed as one word, as ``ssh`` and ``sh -c`` expect.
        """
        assigned = [f"{key}={value}" for key, value in environment.items()]
        inner = shlex.join([*(("env", *assigned) if assigned else ()), *command])
        return [*(word.replace(HOST, self.host) for word in self.words), inner]

    def ask(self, kind: type[T], python: str, *words: str) -> T:
        """Return the probe's answer from the host.

        Raises UsageError for an answer of another kind.
        """
        import msgspec  # part of the extra `live`, which the flags alone do not need

        line = self.line([python, "-m", probe.__name__, *words], {})
        try:
            done = _asked(line)
            return msgspec.json.decode(done.stdout.splitlines()[-1], type=kind)
        except subprocess.TimeoutExpired:
            said = f"no answer within {ASK_S:g} s"
        except OSError as error:
            said = f"{line[0]}: {error.strerror}"
        except (ValueError, RecursionError, IndexError):
            told = done.stderr.decode("utf-8", "replace").strip() or "said nothing"
            said = printable(told.splitlines()[-1])[:200]
        raise UsageError(f"--hosts {self.host}: {python} cannot be run on this host: {said}")


def _asked(line: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    """Run a command in its own session, so that Ctrl-C reaches only fairbench."""
    return subprocess.run(
        line, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_S, start_new_session=True
    )


@dataclass(frozen=True, slots=True)
class ReachedPlace:
    """A replica's place on one of the hosts."""

    reach: Reach
    python: str
    environment: Mapping[str, str]
    listen: str = ANYWHERE
    is_lost: bool = False  # an unreachable host may be reachable soon

    @property
    def host(self) -> str:
        return self.reach.host

    def free_ports(self, count: int) -> list[int]:
        try:
            found = self.reach.ask(list[int], self.python, "ports", str(count))
        except UsageError as error:
            raise RunFailed(f"{error}") from None
        return found

    def start(
        self, command: Sequence[str], log_path: Path, environment: Mapping[str, str]
    ) -> Process:
        # Under a reaper on the host: killing ``ssh`` would not end the remote process.
        there = [self.python, "-m", reaper.__name__, str(GRACE_S), *command]
        return ServerProcess(self.reach.line(there, environment), log_path, reaped=True)


class CommandLauncher:
    """Distributes replicas over hosts in turn; several on one host get different GPUs."""

    def __init__(self, hosts: Sequence[str], command: Sequence[str]) -> None:
        """Check the flags. Raises UsageError without a host, or if the command lacks ``{host}``."""
        if not hosts:
            raise UsageError("--launcher command needs --hosts A,B,...")
        for host in hosts:
            if not _is_host(host):
                raise UsageError(f"--hosts {host!r}: must be the name or the address of a host")
        if not any(HOST in word for word in command):
            raise UsageError(
                f"--launch-command {shlex.join(command)}: must contain {HOST}, the name of the host"
            )
        self._reaches = [Reach(tuple(command), host) for host in dict.fromkeys(hosts)]

    def check(self, wanted: Wanted) -> None:
        """Do nothing: hosts are checked when they are used."""

    @contextmanager
    def places(
        self, wanted: Wanted, *, timeout_s: float, interrupted: Callable[[], bool]
    ) -> Iterator[Sequence[Place]]:
        python = wanted.python.named(wanted.chosen)
        used = self._reaches[: wanted.replicas]
        modules = probe.engine_modules(wanted)
        found = {}
        for reach in used:
            if interrupted():
                raise KeyboardInterrupt
            found[f"host {reach.host}"] = reach.ask(dict[str, str], python, "versions", *modules)
        probe.check_alike(found, wanted)
        turns = [used[number % len(used)] for number in range(wanted.replicas)]
        each, before = Counter(turns), Counter[Reach]()
        places: list[Place] = []
        for reach in turns:
            alone = each[reach] == 1 or wanted.share_gpus
            own = {} if alone else _gpus(wanted.gpus, before[reach])
            before[reach] += 1
            places.append(ReachedPlace(reach, python, own))
        yield places


def _is_host(name: str) -> bool:
    """Return whether a name is a valid host: neither split by a shell nor an option."""
    plain = name.isascii() and name.isprintable() and not set(name) & set(" /:@'\"\\")
    return plain and name != "" and not name.startswith("-")


def _gpus(count: int, before: int) -> dict[str, str]:
    """Return the GPUs of a replica that is preceded by ``before`` replicas on its host."""
    numbers = range(before * count, (before + 1) * count)
    return {VISIBLE: ",".join(map(str, numbers))} if numbers else {}
