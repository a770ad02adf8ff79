"""The launcher that places each replica of a run on a node of a Ray cluster.

In the launcher's process, a RemotePlace represents a node, and a RemoteProcess a server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Self

from fairbench.errors import RunFailed, UsageError
from fairbench.execute.tasks import Child, start_child
from fairbench_load.launchers import Wanted, check_alike, engine_modules
from fairbench_load.processes.process import (
    GRACE_S,
    REAPER_MARGIN_S,
    Process,
    ReplicaPlace,
    cause_in,
    log_end,
)
from fairbench_ray.cluster import AUTO
from fairbench_ray.connection import Connected, Unreachable
from fairbench_ray.replicas import (
    Broken,
    Bundles,
    CallResult,
    Close,
    NodePython,
    Placing,
    RemoteCall,
    ReplicasPlaced,
    serve_replicas,
)

LOOK_S = 0.2  # seconds between two checks of the servers on other nodes
ASK_S = 60.0  # seconds within which an actor must answer
STOP_S = GRACE_S + REAPER_MARGIN_S + 5.0  # seconds within which a server must stop
LOST = 255  # the exit code recorded for a server on an unreachable node


class ReplicaLost(Exception):
    """An error that is raised if a replica cannot be reached any more."""


class ReplicaCalls:
    """Calls to the Ray actors of replicas, and periodic checks of the servers that the actors run.

    All methods are thread-safe.
    """

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
        """Yield an object that calls methods of the replicas, until the ``with`` block ends."""
        calls = cls(pipe, hosts)
        threads = [
            Thread(target=work, name="replicas", daemon=True)
            for work in (calls._hear, calls._watch_processes)
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
        """Call a method of the Ray actor that runs one replica.

        The returned future may raise UsageError or ReplicaLost.
        """
        future: Future[Any] = Future()
        with self._lock:
            ticket = next(self._tickets)
            if replica in self.lost:
                future.set_exception(ReplicaLost())
                return future
            self._open[ticket] = replica, future
            try:
                self._pipe.send(RemoteCall(ticket, replica, method, arguments))
            except OSError:
                self._lose_all()
        return future

    def watch(self, process: RemoteProcess) -> None:
        """Begin to check a server process every ``LOOK_S`` seconds."""
        self._watched.append(process)

    def _watch_processes(self) -> None:
        while not self._over.wait(LOOK_S):
            for process in list(self._watched):
                process.poll_actor()

    def _hear(self) -> None:
        try:
            while not self._over.is_set():
                if self._pipe.poll(LOOK_S):
                    self._settle_call(self._pipe.recv())
        except (EOFError, OSError):
            with self._lock:
                self._lose_all()

    def _settle_call(self, message: CallResult | Broken) -> None:
        with self._lock:
            replica, future = self._open.pop(message.ticket)
            if isinstance(message, CallResult):
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
    """The node of one replica, on which the replica's Ray actor runs."""

    calls: ReplicaCalls
    number: int
    python: str
    # Ray sets the environment of the actor, so ``environment`` is empty.
    environment: Mapping[str, str] = field(default_factory=dict)

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
    """A server that a Ray actor started on another node, with a copy of its log on this machine."""

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
        begun = self._call_actor("start", list(command), dict(environment))
        try:
            begun.result(ASK_S)
        except (ReplicaLost, UsageError, TimeoutError):
            self.exit_code = LOST
        else:
            place.calls.watch(self)

    def _call_actor(self, method: str, *arguments: Any) -> Future[Any]:
        return self._place.calls.call(self._place.number, method, *arguments)

    @property
    def ending(self) -> str:
        if self._place.is_lost:
            return f"its node, {self._place.host}"
        return f"exit code {self.exit_code}"

    def poll_actor(self) -> None:
        """Read the actor's last answer, and request the next answer.

        All calls of this method must come from one thread.
        """
        if self.exit_code is not None:
            return
        if self._looking is None:
            self._looking = self._call_actor("look")
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
            self._call_actor("stop")

    def stop(self) -> None:
        if self.exit_code is not None:
            return
        with suppress(ReplicaLost, UsageError, TimeoutError):
            self._call_actor("stop").result(STOP_S)
        seen = Event()
        for _ in range(int(ASK_S / LOOK_S)):
            if self.exit_code is not None:
                return
            seen.wait(LOOK_S)


POLL_S = 0.2  # seconds between two checks for messages or an interruption
DISMISS_S = 90.0  # seconds that replicas get to end before their processes are killed
FIND_S = 120.0  # limit in seconds on a node's first answer, as imports take long on a busy node

log = logging.getLogger(__name__)


class RayLauncher:
    """A launcher that places replicas on the nodes of a Ray cluster.

    Each replica reserves one CPU core and its GPUs. All replicas end when the launcher's process
    ends. If a node is lost, only the replicas on this node are lost.
    """

    def __init__(self, address: str | None) -> None:
        """Use the Ray cluster whose head has the given address.

        Raises UsageError if the package Ray is not installed.
        """
        if find_spec("ray") is None:
            raise UsageError("--launcher ray needs the package ray: pip install '.[ray]'")
        self._address = address or AUTO

    def check(self, wanted: Wanted) -> None:
        """Raise UsageError if replicas are to share GPUs."""
        if wanted.share_gpus:
            raise UsageError(
                "--share-gpus cannot be combined with --launcher ray, which gives each "
                "server its own GPUs"
            )

    @contextmanager
    def places(
        self, wanted: Wanted, *, timeout_s: float, interrupted: Callable[[], bool]
    ) -> Iterator[Sequence[ReplicaPlace]]:
        child = start_child(serve_replicas, self._address)
        try:
            child.pipe.send(Bundles(wanted.replicas, wanted.gpus, wanted.spread))
            placed = self._wait_until_placed(child, wanted, timeout_s, interrupted)
            with ReplicaCalls.to(child.pipe, placed.hosts) as calls:
                yield _fit_places(calls, placed, wanted)
        finally:
            with suppress(OSError):
                child.pipe.send(Close())
            child.pipe.close()
            child.process.join(DISMISS_S)
            child.process.kill()  # Ray may wait forever for a head node that has exited.
            child.process.join()

    def _wait_until_placed(
        self, child: Child, wanted: Wanted, timeout_s: float, interrupted: Callable[[], bool]
    ) -> ReplicasPlaced:
        until, told = time.monotonic() + timeout_s, False
        placing = Placing(0, "an answer of the cluster")
        while not interrupted():
            match self._heard(child):
                case ReplicasPlaced() as placed:
                    return placed
                case Unreachable(reason):
                    raise UsageError(f"--ray-address {self._address}: {reason}")
                case Placing() as placing if not told:
                    told = True
                    log.info("waiting for the Ray cluster: each replica needs %s", placing.needs)
                case Connected() | None:
                    pass
            if time.monotonic() > until:
                had = "no room for all" if wanted.spread else f"room for only {placing.placed}"
                raise RunFailed(
                    f"{wanted.asked.format(wanted.replicas)}: the Ray cluster at {self._address} "
                    f"still had {had} after {timeout_s:g} s; each process needs {placing.needs}"
                )
        raise KeyboardInterrupt

    def _heard(self, child: Child) -> Any:
        try:
            return child.pipe.recv() if child.pipe.poll(POLL_S) else None
        # Ray ends every process that has lost the head node of the cluster.
        except (EOFError, OSError):
            raise RunFailed(f"the Ray cluster at {self._address} was lost") from None


def _fit_places(calls: ReplicaCalls, placed: ReplicasPlaced, wanted: Wanted) -> list[RemotePlace]:
    """Return the Ray node of each replica. Raises UsageError if nodes have different software."""
    modules = tuple(engine_modules(wanted))
    asked = [
        calls.call(number, "find", wanted.python, wanted.chosen, modules)
        for number in range(wanted.replicas)
    ]
    places, versions = [], {}
    for number, (host, future) in enumerate(zip(placed.hosts, asked, strict=True)):
        try:
            found: NodePython = future.result(FIND_S)
        except (UsageError, ReplicaLost, TimeoutError) as error:
            raise UsageError(f"node {host}: {f'{error}' or 'does not answer'}") from None
        if wanted.gpus and not placed.gpus and not found.needs_no_gpu:
            raise UsageError(
                f"node {host}: Ray has no GPU on this node, but tp = {wanted.gpus} needs GPUs"
            )
        versions[f"node {host}, for {wanted.name}-{number}"] = found.versions
        places.append(RemotePlace(calls, number, found.python))
    check_alike(versions, wanted)
    return places
