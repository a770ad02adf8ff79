"""Launchers, which choose the machines on which a run's servers start.

Two commands print the software versions or the free ports of another machine as JSON:

python -m fairbench_load.launchers versions [MODULE...]
python -m fairbench_load.launchers ports COUNT
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fairbench.errors import RunFailed, UsageError, printable
from fairbench.results.manifest import environment, library_version
from fairbench_load.processes import process, reaper
from fairbench_load.processes.addresses import free_ports
from fairbench_load.processes.environment import OWN, VISIBLE, ServerPython, server_gpus


@dataclass(frozen=True, slots=True)
class Wanted:
    """The servers that an experiment needs: ``replicas`` replicas, each with ``gpus`` GPUs.

    - ``python`` lists the requirements on the Python interpreter that starts the servers.
    - ``chosen`` is the path of the Python interpreter that the user named, or None.
    - If ``share_gpus`` is True, several replicas may use one GPU.
    - If ``spread`` is True, the replicas are distributed over as many machines as possible.
    - ``name`` is the prefix of the replicas' names.
    - ``asked`` is the user's setting as error messages show it, with ``{}`` in place of the number
      of replicas.
    """

    replicas: int
    python: ServerPython = OWN
    chosen: str | None = None
    gpus: int = 0
    share_gpus: bool = False
    spread: bool = False
    name: str = "worker"
    asked: str = "dp = {}"


class Launcher(Protocol):
    """The interface of launchers, which find machines for servers."""

    def check(self, wanted: Wanted) -> None:
        """Raise UsageError, before any server starts, if there are too few machines or GPUs."""

    def places(
        self, wanted: Wanted, *, timeout_s: float, interrupted: Callable[[], bool]
    ) -> AbstractContextManager[Sequence[process.ReplicaPlace]]:
        """Yield a place (a machine and its GPUs) for each replica.

        When the ``with`` block ends, the processes of all replicas are ended. Raises UsageError if
        there are too few machines or GPUs, or if a machine does not meet the requirements in
        ``wanted``. Raises RunFailed if the search for machines takes more than ``timeout_s``
        seconds, and KeyboardInterrupt if ``interrupted`` returns True.
        """


class LocalLauncher:
    """A launcher that starts all replicas on this machine and gives each replica different GPUs."""

    def check(self, wanted: Wanted) -> None:
        self._places(wanted)

    @contextmanager
    def places(
        self, wanted: Wanted, *, timeout_s: float, interrupted: Callable[[], bool]
    ) -> Iterator[Sequence[process.ReplicaPlace]]:
        yield self._places(wanted)

    def _places(self, wanted: Wanted) -> list[process.LocalPlace]:
        python = wanted.python.find_python(wanted.chosen)
        if not wanted.gpus or wanted.python.needs_no_gpu(python):
            return [process.LocalPlace(python)] * wanted.replicas
        gpus = server_gpus(dp=wanted.replicas, tp=wanted.gpus, share=wanted.share_gpus)
        return [process.LocalPlace(python, own) for own in gpus]


OWN_CODE = "fairbench"


def versions(*modules: str) -> dict[str, str]:
    """Return the versions of software that affects results, including the given ``modules``."""
    found = {name: f"{library_version(name)}" for name in modules}
    return {**environment(), **found}


def ports(count: str) -> list[int]:
    """Return ``count`` different ports that are free on this machine."""
    return free_ports(int(count))


PROBE = "fairbench_load.launchers"
WORDS: Mapping[str, Callable[..., Any]] = {"versions": versions, "ports": ports}


def engine_modules(wanted: Wanted) -> Sequence[str]:
    """Return the engine's modules, whose versions must be equal on all machines."""
    return [name for name in wanted.python.modules if name != OWN_CODE]


def check_alike(found: Mapping[str, Mapping[str, str]], wanted: Wanted) -> None:
    """Raise UsageError, which names the machine, if software versions differ between machines.

    ``found`` holds the result of ``versions`` for each machine. Emulators run fairbench's own code,
    so each machine needs the software versions of the machine that starts the run. With real
    engines, only fairbench must have the same version on all machines.
    """
    here = versions()
    if wanted.python.modules:
        here = {OWN_CODE: here[OWN_CODE]}
    first = next(iter(found), "")
    for name, theirs in found.items():
        for expected, where in ((here, "here"), (found[first], f"on {first}")):
            for key, value in expected.items():
                if theirs.get(key) != value:
                    raise UsageError(
                        f"{key} is {theirs.get(key)} on {name}, but {value} {where}; install the "
                        "same version on both machines, because servers would differ otherwise"
                    )


HOST = "{host}"
# Servers listen on all addresses: a host may resolve its own name to the loopback address, where
# other hosts cannot reach a server.
ANYWHERE = "0.0.0.0"
# A host must answer within 120 s; the first import from a remote file system is slow.
ASK_S = 120.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reach:
    """A command that runs shell lines on one host, such as ``ssh HOST``."""

    words: tuple[str, ...]
    host: str

    def line(self, command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        """Return the local command line that runs ``command`` on the host.

        ``command`` becomes a single word, as ``ssh`` and ``sh -c`` expect.
        """
        assigned = [f"{key}={value}" for key, value in environment.items()]
        inner = shlex.join([*(("env", *assigned) if assigned else ()), *command])
        return [*(word.replace(HOST, self.host) for word in self.words), inner]

    def ask(self, kind: type[T], python: str, *words: str) -> T:
        """Run this module on the host with the arguments ``words``; return the printed answer.

        Raises UsageError if the module cannot be run, or if the printed answer is not of type
        ``kind``.
        """
        # Import msgspec only here, because flags are also checked without the extra `live`.
        import msgspec

        line = self.line([python, "-m", PROBE, *words], {})
        try:
            # The command runs in a new session, so that it does not receive Ctrl-C from the
            # terminal.
            done = subprocess.run(
                line,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=ASK_S,
                start_new_session=True,
            )
            return msgspec.json.decode(done.stdout.splitlines()[-1], type=kind)
        except subprocess.TimeoutExpired:
            said = f"no answer within {ASK_S:g} s"
        except OSError as error:
            said = f"{line[0]}: {error.strerror}"
        except (ValueError, RecursionError, IndexError):
            told = done.stderr.decode("utf-8", "replace").strip() or "said nothing"
            said = printable(told.splitlines()[-1])[:200]
        raise UsageError(f"--hosts {self.host}: {python} cannot be run on this host: {said}")


@dataclass(frozen=True, slots=True)
class ReachedPlace:
    """The place of a replica on a host that is reached by a command such as ``ssh``."""

    reach: Reach
    python: str
    environment: Mapping[str, str]
    listen: str = ANYWHERE
    # A host never counts as lost, because an unreachable host may soon be reachable again.
    is_lost: bool = False

    @property
    def host(self) -> str:
        return self.reach.host

    def free_ports(self, count: int) -> list[int]:
        try:
            return self.reach.ask(list[int], self.python, "ports", str(count))
        except UsageError as error:
            raise RunFailed(f"{error}") from None

    def start(
        self, command: Sequence[str], log_path: Path, environment: Mapping[str, str]
    ) -> process.Process:
        # ``reaper.py`` on the host ends the server, because killing ``ssh`` would not end it.
        there = [self.python, "-m", reaper.__name__, str(process.GRACE_S), *command]
        return process.ServerProcess(self.reach.line(there, environment), log_path, reaped=True)


class CommandLauncher:
    """A launcher that starts replicas on the given hosts, filling one host after another.

    Replicas on one host get different GPUs.
    """

    def __init__(self, hosts: Sequence[str], command: Sequence[str]) -> None:
        """Check the hosts and the launch command.

        Raises UsageError if no host is given, a host is invalid, or the command lacks ``{host}``.
        """
        if not hosts:
            raise UsageError("--launcher command needs --hosts A,B,...")
        for host in hosts:
            # A shell must read the host's name as a single word that is not an option.
            is_word = host.isascii() and host.isprintable() and not set(host) & set(" /:@'\"\\")
            if not host or host.startswith("-") or not is_word:
                raise UsageError(f"--hosts {host!r}: must be the name or the address of a host")
        if not any(HOST in word for word in command):
            raise UsageError(
                f"--launch-command {shlex.join(command)}: must contain {HOST}, which is "
                "replaced by the name of a host"
            )
        self._reaches = [Reach(tuple(command), host) for host in dict.fromkeys(hosts)]

    def check(self, wanted: Wanted) -> None:
        """Do nothing, because hosts are checked when servers start on them."""

    @contextmanager
    def places(
        self, wanted: Wanted, *, timeout_s: float, interrupted: Callable[[], bool]
    ) -> Iterator[Sequence[process.ReplicaPlace]]:
        python = wanted.python.named_python(wanted.chosen)
        used = self._reaches[: wanted.replicas]
        modules = engine_modules(wanted)
        found = {}
        for reach in used:
            if interrupted():
                raise KeyboardInterrupt
            found[f"host {reach.host}"] = reach.ask(dict[str, str], python, "versions", *modules)
        check_alike(found, wanted)
        turns = [used[number % len(used)] for number in range(wanted.replicas)]
        each, before = Counter(turns), Counter[Reach]()
        places: list[process.ReplicaPlace] = []
        for reach in turns:
            own: dict[str, str] = {}
            if each[reach] > 1 and wanted.gpus and not wanted.share_gpus:
                first = before[reach] * wanted.gpus
                own[VISIBLE] = ",".join(map(str, range(first, first + wanted.gpus)))
            before[reach] += 1
            places.append(ReachedPlace(reach, python, own))
        yield places


if __name__ == "__main__":
    sys.stdout.write(json.dumps(WORDS[sys.argv[1]](*sys.argv[2:])) + "\n")
