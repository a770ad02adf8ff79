"""The process of an engine's Python whose code decides, and its errors."""

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

INSTALLED = "installed"  # stands for the Python that runs fairbench
DOOR = Path(__file__).resolve().parents[1]
# The engine's Python need not have this package, and must not import another version of it. The
# current folder, which ``-c`` puts first on the path, has no part in a run.
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
    """Return the path of the Python that ``--engine-code`` names. Raises UsageError."""
    if named == INSTALLED:
        return sys.executable
    found = shutil.which(Path(named).expanduser())
    if found is None:
        raise UsageError(
            f"engine_code = {named!r}: no such program; name a Python that has SGLang or vLLM, "
            f"such as .venv/bin/python, or {INSTALLED}"
        )
    return found


class EngineProcess:
    """A process that runs an engine's own scheduling code; ``close`` it after use.

    Args:
        named: The Python, as ``--engine-code`` names it.
        engine: Name of the engine.
        supported: The engine's releases that are known to fit, oldest first.
        only_source: Whether ``source`` is the only operation; the engine is then not imported.
    """

    def __init__(
        self, named: str, engine: str, supported: Sequence[str], *, only_source: bool = False
    ) -> None:
        self._named, self._engine, self._supported = named, engine, supported
        self.version = ""  # of the engine, after ``source``
        self._is_answered = True  # whether the last message was answered
        python = python_of(named)
        # passes the ends of the replicas' sockets to the process
        self._passing, theirs = socket.socketpair()
        command = [python, "-c", START, str(DOOR), engine, str(theirs.fileno())]
        command += [SOURCE_ONLY] if only_source else []
        self._channels: list[Channel] = []  # of the replicas, in their order
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by ``close``
        # the order of a set of texts must not change from run to run
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
                pass_fds=[theirs.fileno()],
                process_group=0,  # with the copies that serve runs
            )
        except OSError as error:
            self._errors.close()
            self._passing.close()
            raise UsageError(f"engine_code = {named!r}: cannot be run: {error.strerror}") from None
        finally:
            theirs.close()

    @property
    def is_ready(self) -> bool:
        """Whether all messages were answered."""
        return self._is_answered and not any(one.unanswered for one in self._channels)

    def source(self) -> dict[str, Any]:
        """Return which code decides (``inside.provenance``).

        ``is_loaded`` is false if the files have changed since the process imported them.
        """
        found: dict[str, Any] = self.ask("source")
        self.version = found["version"]
        return found

    def ask(self, *message: Any) -> Any:
        """Return the answer to an operation with its arguments. Raises RunFailed or UsageError."""
        process, self._is_answered = self._process, False
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # the answer says why
            process.stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise self._ended(process.wait())
        answer = self.read(line)
        self._is_answered = True
        return answer

    def read(self, line: bytes) -> Any:
        """Return the answer in a line. Raises RunFailed or UsageError for a failure."""
        answer = json.loads(line)
        if isinstance(answer, dict) and "failed" in answer:
            raise self._failed(answer["failed"])
        return answer

    def add(self, *, tells_evicted: bool) -> Channel:
        """Return the channel of a new replica, which has a process of its own."""
        ours, theirs = socket.socketpair()
        channel = Channel(ours, len(self._channels), self)
        self._channels.append(channel)
        with theirs:
            socket.send_fds(self._passing, [b"1"], [theirs.fileno()])
            self.ask("add", tells_evicted)
        channel.receive()  # the engine's code has made its scheduler
        return channel

    def end(self) -> None:
        """End a run, all of whose messages have been answered."""
        self._close_channels()
        self.ask("end")

    def _close_channels(self) -> None:
        for channel in self._channels:
            channel.close()
        self._channels = []

    def close(self) -> None:
        """End the process."""
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
        """Return the error for a replica whose process has ended."""
        return self._ended(self.ask("ended", replica))

    def _failed(self, told: Mapping[str, Any]) -> Exception:
        """Return the error for a failure that the process has described."""
        text = ": ".join(dict.fromkeys((told["type"], told["text"])))  # an error may have no text
        where = f"{told['file']}, line {told['line']}, in {told['function']}"
        if told["type"] == "ModuleNotFoundError" and not self.version:
            return UsageError(
                f"engine_code = {self._named!r}: cannot import {self._engine}: {told['text']}"
            )
        if told["type"] == UsageError.__name__:  # of the plugin
            return UsageError(f"engine_code = {self._named!r}: {told['text']}")
        if told["fits"]:
            return RunFailed(f"code of {self._engine}: {where}: {text}")
        version = f" {self.version}" if self.version else ""
        return RunFailed(
            f"{self._engine}{version} differs from what fairbench drives, {self._supported[0]} to "
            f"{self._supported[-1]}: {text} ({where})"
        )


class Channel:
    """The messages of one replica, whose process answers them in order.

    A message may be sent before the former one is answered.

    Args:
        connection: Socket to the replica's process.
        index: Number of the replica.
        process: Process of the engine's Python that started the replica's process.
    """

    def __init__(self, connection: socket.socket, index: int, process: EngineProcess) -> None:
        self._connection, self._index, self._process = connection, index, process
        self._answers = connection.makefile("rb")
        self.unanswered = 1  # the process reports its start

    def send(self, *message: Any) -> None:
        """Send an operation with its arguments."""
        self.unanswered += 1
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with suppress(ConnectionError):  # the answer says why
            self._connection.sendall(line)

    def receive(self) -> Any:
        """Return the answer to the first unanswered message. Raises RunFailed or UsageError."""
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
        """Return the answer to an operation with its arguments; no other message is unanswered."""
        self.send(*message)
        return self.receive()

    def close(self) -> None:
        """Close the channel; an idle process then ends."""
        self._answers.close()
        self._connection.close()
