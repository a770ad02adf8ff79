"""The process that runs an engine's own scheduling code, and the connections to the process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairbench.errors import RunFailed, UsageError
from fairbench_engines.replica.inside.bridge import SOURCE_ONLY

# the value of --engine-code for the Python that runs fairbench
INSTALLED = "installed"
DOOR = Path(__file__).resolve().parents[1]
# ``START`` lets the engine's Python import the running version of ``fairbench_engines`` instead of
# an installed version. Python's option ``-c`` puts the current folder on the import path. ``START``
# removes this folder, so that no file of the user is imported by mistake.
START = """
import sys, types
sys.path[:] = [path for path in sys.path if path]
door = types.ModuleType("fairbench_engines")
door.__path__ = [sys.argv.pop(1)]
sys.modules["fairbench_engines"] = door
from fairbench_engines.replica.inside.bridge import main
sys.exit(main(sys.argv[1:]))
"""


def python_of(named: str) -> str:
    """Return the path of the Python interpreter given with ``--engine-code``.

    Raises UsageError if no such program exists.
    """
    if named == INSTALLED:
        return sys.executable
    found = shutil.which(Path(named).expanduser())
    if found is None:
        raise UsageError(
            f"engine_code = {named!r}: no such program; give the path of a Python interpreter "
            f"that has SGLang or vLLM, such as .venv/bin/python, or {INSTALLED}"
        )
    return found


class EngineProcess:
    """A process that runs an engine's own scheduling code, until the owner calls ``close``.

    Args:
        named: The value of ``--engine-code``: the path of a Python interpreter, or ``INSTALLED``.
        engine: The name of the engine.
        supported: The supported releases of the engine; the oldest is first.
        only_source: Whether the process answers only the message ``source``, without importing the
            engine.
    """

    def __init__(
        self, named: str, engine: str, supported: Sequence[str], *, only_source: bool = False
    ) -> None:
        self._named, self._engine, self._supported = named, engine, supported
        self.version = ""  # the engine's release, set by ``source``
        self._changed = 0  # number of edited engine files, set by ``source``
        self._is_answered = True  # whether the last message was answered
        python = python_of(named)
        # Through this pair of sockets, ``add`` sends the process a socket for each new replica.
        self._passing, theirs = socket.socketpair()
        command = [python, "-c", START, str(DOOR), engine, str(theirs.fileno())]
        command += [SOURCE_ONLY] if only_source else []
        self._channels: list[Channel] = []  # one channel for each replica
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # ``close`` closes the file
        # A fixed hash seed gives sets of strings the same order in every run.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
                pass_fds=[theirs.fileno()],
                process_group=0,  # lets ``close`` also kill child processes
            )
        except OSError as error:
            self._errors.close()
            self._passing.close()
            raise UsageError(f"engine_code = {named!r}: cannot be run: {error.strerror}") from None
        finally:
            theirs.close()

    @property
    def is_ready(self) -> bool:
        """Whether the process has answered every message and can thus serve another run."""
        return self._is_answered and not any(one.unanswered for one in self._channels)

    def source(self) -> dict[str, Any]:
        """Return the version, digest and commit of the engine's code (``inside.provenance``).

        ``is_loaded`` is False if the engine's files have changed since the import.
        """
        found: dict[str, Any] = self.ask("source")
        self.version, self._changed = found["version"], len(found["changed"])
        return found

    def ask(self, *message: Any) -> Any:
        """Send an operation with its arguments, and return the answer.

        Raises RunFailed if the process ends or the engine's code fails, and UsageError for an
        unsuitable Python or configuration.
        """
        process, self._is_answered = self._process, False
        assert process.stdin is not None
        assert process.stdout is not None
        # If the process has ended, reading its answer fails below.
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise self._ended(process.wait())
        answer = self.read(line)
        self._is_answered = True
        return answer

    def read(self, line: bytes) -> Any:
        """Return the answer that a line contains, or raise the error that the line reports."""
        answer = json.loads(line)
        if isinstance(answer, dict) and "failed" in answer:
            raise self._failed(answer["failed"])
        return answer

    def add(self, *, tells_evicted: bool) -> Channel:
        """Start a process for a new replica, and return the channel to the process.

        If ``tells_evicted`` is True, the process reports evicted prefixes.
        """
        ours, theirs = socket.socketpair()
        channel = Channel(ours, len(self._channels), self)
        self._channels.append(channel)
        with theirs:
            socket.send_fds(self._passing, [b"1"], [theirs.fileno()])
            self.ask("add", tells_evicted)
        channel.receive()  # waits until the engine's scheduler exists
        return channel

    def end(self) -> None:
        """End the run; every message must have been answered."""
        self._close_channels()
        self.ask("end")

    def _close_channels(self) -> None:
        for channel in self._channels:
            channel.close()
        self._channels = []

    def close(self) -> None:
        """Kill the process and its child processes, and close all connections."""
        self._close_channels()
        self._passing.close()
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._errors.close()

    def _ended(self, code: int) -> RunFailed:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        last = f": {lines[-1]}" if lines else ""
        return RunFailed(f"engine_code {self._named}: the process ended with code {code}{last}")

    def ended_of(self, replica: int) -> RunFailed:
        """Return the error for a replica whose process ended unexpectedly."""
        return self._ended(self.ask("ended", replica))

    def _failed(self, told: Mapping[str, Any]) -> Exception:
        text = ": ".join(dict.fromkeys((told["type"], told["text"])))
        where = f"{told['file']}, line {told['line']}, in {told['function']}"
        if told["type"] == "ModuleNotFoundError" and not self.version:
            return UsageError(
                f"engine_code = {self._named!r}: cannot import {self._engine}: {told['text']}"
            )
        if told["type"] == UsageError.__name__:  # raised only by fairbench's plugin
            return UsageError(f"engine_code = {self._named!r}: {told['text']}")
        if told["fits"]:
            return RunFailed(f"code of {self._engine}: {where}: {text}")
        version = f" {self.version}" if self.version else ""
        if self._changed:
            version += f" with {self._changed} changed file{'s' * (self._changed > 1)}"
        return RunFailed(
            f"{self._engine}{version} differs from the supported releases {self._supported[0]} to "
            f"{self._supported[-1]}: {text} ({where})"
        )


class Channel:
    """The connection to the process of a replica, which answers messages in order.

    A message may be sent before the previous message is answered.

    Args:
        connection: The socket to the replica's process.
        index: The number of the replica.
        process: The engine's process, which started the replica's process.
    """

    def __init__(self, connection: socket.socket, index: int, process: EngineProcess) -> None:
        self._connection, self._index, self._process = connection, index, process
        self._answers = connection.makefile("rb")
        # number of expected answers; the first answer reports the start of the process
        self.unanswered = 1

    def send(self, *message: Any) -> None:
        """Send an operation with its arguments, without waiting for the answer."""
        self.unanswered += 1
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with suppress(ConnectionError):  # ``receive`` raises the error of an ended process
            self._connection.sendall(line)

    def receive(self) -> Any:
        """Wait for the answer to the oldest unanswered message, and return it.

        Raises the same errors as ``EngineProcess.ask``.
        """
        try:
            line = self._answers.readline()
        except ConnectionResetError:
            line = b""
        if not line:
            raise self._process.ended_of(self._index)
        answer = self._process.read(line)
        self.unanswered -= 1
        return answer

    def ask(self, *message: Any) -> Any:
        """Send an operation and return its answer. Precondition: earlier messages are answered."""
        self.send(*message)
        return self.receive()

    def close(self) -> None:
        """Close the channel, so that the replica's process ends after any operation in progress."""
        self._answers.close()
        self._connection.close()
