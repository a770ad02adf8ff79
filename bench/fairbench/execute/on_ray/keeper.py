"""The keeper: an actor that starts and ends the server of one replica on its node."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

from fairbench.errors import UsageError, printable
from fairbench.live.launchers import probe
from fairbench.live.processes import reaper
from fairbench.live.processes.addresses import free_ports
from fairbench.live.processes.process import GRACE_S, ServerProcess
from fairbench.live.processes.server_python import ServerPython

# Ray kills the children of an actor that ends, and no grandchildren: so the reaper is one, and has
# the time to end its server.
BETWEEN = ("/bin/sh", "-c", '"$@"; exit', "sh")


class Looked(NamedTuple):
    """A server's state: the exit code, None while it runs, and new output."""

    exit_code: int | None
    said: bytes


class Found(NamedTuple):
    """A node's Python for servers, and the versions that must be equal on all nodes."""

    python: str
    versions: Mapping[str, str]
    needs_no_gpu: bool


class Keeper:
    """A keeper of one server at a time, which always ends with this process."""

    def __init__(self) -> None:
        self._folder = Path(mkdtemp(prefix="fairbench-"))
        self._log = self._folder / "log"
        self._read = 0
        self._server: ServerProcess | None = None

    def find(self, wanted: ServerPython, chosen: str | None, modules: Sequence[str]) -> Found:
        """Find the Python for servers. Raises UsageError unless it contains fairbench.

        Args:
            wanted: Way to find the Python for servers.
            chosen: Python that the user named, or None.
            modules: Modules whose versions are looked up.
        """
        python = wanted.find(chosen)
        command = [python, "-m", probe.__name__, "versions", *modules]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr.strip() or "said nothing").splitlines()[-1]
            raise UsageError(f"{python}: {printable(said)[:200]}")
        versions = json.loads(done.stdout.splitlines()[-1])
        return Found(python, versions, wanted.needs_no_gpu(python))

    def free_ports(self, count: int) -> list[int]:
        """Different ports of the node."""
        return free_ports(count)

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the server. Precondition: none runs."""
        under = (*BETWEEN, sys.executable, "-I", "-S", reaper.__file__, str(GRACE_S))
        self._server = ServerProcess(
            [*under, *command], self._log, environment=environment, reaped=True
        )

    def look(self) -> Looked:
        """Return the server's state. Precondition: the server was started."""
        assert self._server is not None
        exit_code = self._server.exit_code  # first, so that all that it said is there
        with self._log.open("rb") as log:
            log.seek(self._read)
            said = log.read()
        self._read += len(said)
        return Looked(exit_code, said)

    def stop(self) -> None:
        """End it, if there is one."""
        if self._server is not None:
            self._server.stop()

    def close(self) -> None:
        """Leave nothing on the node."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
