"""Servers on other nodes, as their launcher sees them: places and processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Self

from fairbench.errors import RunFailed, UsageError
from fairbench.execute.on_ray.keeper import Looked
from fairbench.execute.on_ray.replicas import Answer, Broken, Call
from fairbench.live.processes.place import Process
from fairbench.live.processes.process import GRACE_S, REAPER_MARGIN_S, log_end

LOOK_S = 0.2
ASK_S = 60.0
STOP_S = GRACE_S + REAPER_MARGIN_S + 5.0
LOST = 255  # the exit code of whom nobody can ask for one


class ReplicaLost(Exception):
    """A replica that will not answer any more."""


class Line:
    """Calls keepers, and watches their servers. Safe to use from any thread."""

    def __init__(self, pipe: Connection, hosts: Sequence[str]) -> None:
        self.hosts = hosts
        self.lost: set[int] = set()
        self._pipe, self._lock = pipe, Lock()
        self._tickets = count()
        self._open: dict[int, tuple[int, Future[Any]]] = {}
        self._watched: list[FarProcess] = []
        self._over = Event()

    @classmethod
    @contextmanager
    def to(cls, pipe: Connection, hosts: Sequence[str]) -> Iterator[Self]:
        """Open inside."""
        line = cls(pipe, hosts)
        threads = [
            Thread(target=work, name="replicas", daemon=True) for work in (line._hear, line._watch)
        ]
        for thread in threads:
            thread.start()
        try:
            yield line
        finally:
            line._over.set()
            for thread in threads:
                thread.join()

    def call(self, replica: int, method: str, *arguments: Any) -> Future[Any]:
        """Call one keeper. The future raises UsageError or ReplicaLost."""
        future: Future[Any] = Future()
        with self._lock:
            ticket = next(self._tickets)
            if replica in self.lost:
                future.set_exception(ReplicaLost())
                return future
            self._open[ticket] = replica, future
            try:
                self._pipe.send(Call(ticket, replica, method, arguments))
            except OSError:
                self._lose_all()
        return future

    def watch(self, process: FarProcess) -> None:
        """Check the process periodically from now on."""
        self._watched.append(process)

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            for process in list(self._watched):
                process.look()

    def _hear(self) -> None:
        try:
            while not self._over.is_set():
                if self._pipe.poll(LOOK_S):
                    self._answered(self._pipe.recv())
        except (EOFError, OSError):
            with self._lock:
                self._lose_all()

    def _answered(self, message: Answer | Broken) -> None:
        with self._lock:
            replica, future = self._open.pop(message.ticket)
            if isinstance(message, Answer):
                future.set_result(message.value)
            elif message.lost:
                self.lost.add(replica)
                future.set_exception(ReplicaLost(message.reason))
            else:
                future.set_exception(UsageError(message.reason))

    def _lose_all(self) -> None:
        self.lost.update(range(len(self.hosts)))
        for _, future in self._open.values():
            future.set_exception(ReplicaLost("the Ray cluster is gone"))
        self._open.clear()


@dataclass(frozen=True, slots=True)
class FarPlace:
    """The place of one replica: the node of its keeper."""

    line: Line
    number: int
    python: str
    environment: Mapping[str, str] = field(default_factory=dict)  # Ray has told the keeper

    @property
    def host(self) -> str:
        """The node's address."""
        return self.line.hosts[self.number]

    @property
    def listen(self) -> str:
        """The address on which servers listen, equal to the host's."""
        return self.host

    @property
    def is_lost(self) -> bool:
        """Return whether the keeper is gone, for example together with its node."""
        return self.number in self.line.lost

    def free_ports(self, count: int) -> list[int]:
        """Return free ports that the node reports."""
        try:
            found: list[int] = self.line.call(self.number, "free_ports", count).result(ASK_S)
        except (ReplicaLost, TimeoutError):
            raise RunFailed(f"node {self.host} was lost before its server was started") from None
        return found

    def start(
        self, command: Sequence[str], log_path: Path, environment: Mapping[str, str]
    ) -> Process:
        """Start a process through the node's keeper.

        Args:
            command: Words of the command.
            log_path: File for the output of the process.
            environment: Environment variables of the process.
        """
        return FarProcess(self, command, log_path, environment)


class FarProcess:
    """A server that a keeper started. Its log is copied here as it is written."""

    def __init__(
        self,
        place: FarPlace,
        command: Sequence[str],
        log_path: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.exit_code: int | None = None
        self._place, self._log_path = place, log_path
        log_path.touch()
        self._log_start = log_path.stat().st_size
        self._looking: Future[Looked] | None = None
        begun = self._call("start", list(command), dict(environment))
        try:
            begun.result(ASK_S)
        except (ReplicaLost, UsageError, TimeoutError):
            self.exit_code = LOST
        else:
            place.line.watch(self)

    def _call(self, method: str, *arguments: Any) -> Future[Any]:
        return self._place.line.call(self._place.number, method, *arguments)

    @property
    def ending(self) -> str:
        """The exit code, or a note that the node is gone."""
        if self._place.is_lost:
            return f"its node, {self._place.host}"
        return f"exit code {self.exit_code}"

    def look(self) -> None:
        """Read the keeper's last state, and ask for the next. Call this from one thread."""
        if self.exit_code is not None:
            return
        if self._looking is None:
            self._looking = self._call("look")
        if not self._looking.done():
            return
        looking, self._looking = self._looking, None
        try:
            exit_code, said = looking.result()
        except (ReplicaLost, UsageError):
            exit_code, said = LOST, b""
        with self._log_path.open("ab") as log:
            log.write(said)
        self.exit_code = exit_code

    def log_tail(self) -> str:
        """Return the last log lines that were received here."""
        return log_end(self._log_path, self._log_start)

    def ask_to_stop(self) -> None:
        """Ask the keeper to end the process."""
        if self.exit_code is None:
            self._call("stop")

    def stop(self) -> None:
        """Ask the keeper to end the process and wait for the end, unless the process is lost."""
        if self.exit_code is not None:
            return
        with suppress(ReplicaLost, UsageError, TimeoutError):
            self._call("stop").result(STOP_S)
        seen = Event()
        for _ in range(int(ASK_S / LOOK_S)):
            if self.exit_code is not None:
                return
            seen.wait(LOOK_S)
