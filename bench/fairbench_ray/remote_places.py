"""Places and server processes on other nodes, as their launcher sees them."""

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
from fairbench.live.processes.process import GRACE_S, REAPER_MARGIN_S, Process
from fairbench.live.processes.server_log import cause_in, log_end
from fairbench_ray.replicas import Answer, Broken, Call

LOOK_S = 0.2
ASK_S = 60.0
STOP_S = GRACE_S + REAPER_MARGIN_S + 5.0
LOST = 255  # the exit code of an unreachable process


class ReplicaLost(Exception):
    """A replica that can no longer be reached."""


class ReplicaCalls:
    """Calls to the actors of replicas, and a watch on their servers. Safe in any thread."""

    def __init__(self, pipe: Connection, hosts: Sequence[str]) -> None:
        self.hosts = hosts
        self.lost: set[int] = set()
        self._pipe, self._lock = pipe, Lock()
        self._tickets = count()
        self._open: dict[int, tuple[int, Future[Any]]] = {}
        self._watched: list[RemoteProcess] = []
        self._over = Event()

    @classmethod
    @contextmanager
    def to(cls, pipe: Connection, hosts: Sequence[str]) -> Iterator[Self]:
        """Yield the calls; they end with the block."""
        calls = cls(pipe, hosts)
        threads = [
            Thread(target=work, name="replicas", daemon=True)
            for work in (calls._hear, calls._watch)
        ]
        for thread in threads:
            thread.start()
        try:
            yield calls
        finally:
            calls._over.set()
            for thread in threads:
                thread.join()

    def call(self, replica: int, method: str, *arguments: Any) -> Future[Any]:
        """Call one actor. The future raises UsageError or ReplicaLost."""
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

    def watch(self, process: RemoteProcess) -> None:
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
class RemotePlace:
    """The place of one replica: the node of its actor."""

    calls: ReplicaCalls
    number: int
    python: str
    environment: Mapping[str, str] = field(default_factory=dict)  # Ray has notified the actor

    @property
    def host(self) -> str:
        return self.calls.hosts[self.number]

    @property
    def listen(self) -> str:
        return self.host

    @property
    def is_lost(self) -> bool:
        return self.number in self.calls.lost

    def free_ports(self, count: int) -> list[int]:
        try:
            found: list[int] = self.calls.call(self.number, "free_ports", count).result(ASK_S)
        except (ReplicaLost, TimeoutError):
            raise RunFailed(f"node {self.host} was lost before its server was started") from None
        return found

    def start(
        self, command: Sequence[str], log_path: Path, environment: Mapping[str, str]
    ) -> Process:
        return RemoteProcess(self, command, log_path, environment)


class RemoteProcess:
    """A server that an actor started. Its log is copied here as it is written."""

    def __init__(
        self,
        place: RemotePlace,
        command: Sequence[str],
        log_path: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.exit_code: int | None = None
        self._place, self._log_path = place, log_path
        log_path.touch()
        self._log_start = log_path.stat().st_size
        self._looking: Future[tuple[int | None, bytes]] | None = None
        begun = self._call("start", list(command), dict(environment))
        try:
            begun.result(ASK_S)
        except (ReplicaLost, UsageError, TimeoutError):
            self.exit_code = LOST
        else:
            place.calls.watch(self)

    def _call(self, method: str, *arguments: Any) -> Future[Any]:
        return self._place.calls.call(self._place.number, method, *arguments)

    @property
    def ending(self) -> str:
        if self._place.is_lost:
            return f"its node, {self._place.host}"
        return f"exit code {self.exit_code}"

    def look(self) -> None:
        """Read the actor's last state, and ask for the next. Call this from one thread."""
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
        return log_end(self._log_path, self._log_start)

    def cause(self) -> str:
        return cause_in(self._log_path, self._log_start)

    def ask_to_stop(self) -> None:
        if self.exit_code is None:
            self._call("stop")

    def stop(self) -> None:
        if self.exit_code is not None:
            return
        with suppress(ReplicaLost, UsageError, TimeoutError):
            self._call("stop").result(STOP_S)
        seen = Event()
        for _ in range(int(ASK_S / LOOK_S)):
            if self.exit_code is not None:
                return
            seen.wait(LOOK_S)
