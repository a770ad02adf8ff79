"""Servers: their parallel start, the wait until they are ready, and restarts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event, Thread
from typing import TypeAlias

from fairbench.errors import RunFailed, printable
from fairbench.execute.tasks import ServersProgress
from fairbench_load.processes.process import HERE, ReplicaPlace
from fairbench_load.server_facts import answers

log = logging.getLogger(__name__)

POLL_S = 0.1
HEALTH_TIMEOUT_S = 5.0
# If a server's port is taken, its log contains one of the texts ``TAKEN``.
TAKEN = ("address already in use", "address in use")
PROBE_BYTES = 2**16  # number of bytes written to test whether a disk is full
TELL_S = 30.0  # seconds between two log lines about servers that are not ready yet
MAX_STARTS = 5  # maximum number of starts of a server if its port is already in use
LOOK_S = 0.5  # seconds between two searches for servers that have ended
FIRST_PAUSE_S = 1.0  # seconds before the first restart of a server that has ended
# The pause before a restart doubles each time the server ends, up to 60 s.
LONGEST_PAUSE_S = 60.0
# If a server has run for 60 s, the pause before its next restart is again ``FIRST_PAUSE_S``.
STEADY_S = 60.0


OnReady: TypeAlias = Callable[[ServersProgress], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The instructions for starting a server.

    - ``command`` returns the command line for ``ports`` free ports; the first port is for HTTP.
    - ``health`` is the page that answers with success when the server is ready.
    - ``ready`` replaces the check of ``health``: a function that takes the server's URL and returns
      whether the server is ready.
    - ``kv_events`` is the address of the server's KV cache events; ``{host}`` and ``{port}`` stand
      for the server's host and its second port.
    - ``place`` is the machine on which the server starts.
    """

    name: str
    command: Callable[[Sequence[int]], list[str]]
    ports: int = 1
    health: str = "/health"
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[str], bool] | None = None
    kv_events: str = "tcp://{host}:{port}"
    place: ReplicaPlace = HERE


class Server:
    """A server that is started on free ports, by the instructions in a ``Recipe``."""

    def __init__(self, recipe: Recipe, log_dir: Path) -> None:
        self.recipe = recipe
        self._log_path = log_dir / f"{recipe.name}.log"
        self.starts = 0
        self.deaths = 0
        self.start()

    def start(self) -> None:
        """Start the server, which must not be running, on new ports."""
        self.starts += 1
        self.ports = self.recipe.place.free_ports(self.recipe.ports)
        self._launch()

    def start_again(self) -> None:
        """Restart the server on its former ports."""
        self.process.stop()
        self._launch()

    def _launch(self) -> None:
        self.process = self.recipe.place.start(
            self.recipe.command(self.ports), self._log_path, self.recipe.environment
        )

    @property
    def url(self) -> str:
        return f"http://{self.recipe.place.host}:{self.ports[0]}"

    @property
    def has_ended(self) -> bool:
        return self.process.exit_code is not None

    def is_ready(self) -> bool:
        """Return whether the server is ready.

        If the server exited because a port was taken, the server is started again. Raises
        RunFailed, with the last lines of the log, if the server exited for any other reason than a
        taken port.
        """
        if not self.has_ended:
            if self.recipe.ready is not None:
                return self.recipe.ready(self.url)
            return answers(self.url + self.recipe.health, timeout_s=HEALTH_TIMEOUT_S)
        said = self.process.log_tail().lower()
        if self.starts == MAX_STARTS or not any(text in said for text in TAKEN):
            self.check_running()
        self.process.stop()
        self.start()
        return False

    def check_running(self) -> None:
        """Raise RunFailed, with the last lines of the log, if the server's process has exited."""
        if self.has_ended:
            raise self.failed(f"ended with {self.process.ending}")

    def named_with_place(self) -> str:
        """Return the server's name and, if its machine is lost, the name of the machine."""
        place = self.recipe.place
        return f"{self.recipe.name} (with {place.host})" if place.is_lost else self.recipe.name

    def how_it_ended(self) -> str:
        """Return a line that says how and why the server ended."""
        return self._shown(f"ended with {self.process.ending}")

    def last_words(self) -> str:
        """Return the exit code and the cause of the server's end; the server must have ended."""
        return f"{self.process.ending}{self._cause()}"

    def _cause(self) -> str:
        cause = self.process.cause()
        return f" ({cause})" if cause else ""

    def _shown(self, how: str) -> str:
        """Return a message: what happened (``how``), its cause, the log's path, and disk errors."""
        shown = f"{self.recipe.name} {how}{self._cause()}; its log is {self._log_path}"
        directory = self._log_path.parent
        why = unwritable(directory)
        return f"{directory}: cannot be written: {why}, so {shown}" if why else shown

    def failed(self, how: str) -> RunFailed:
        """Return an error with the cause as message and the log's last lines as a note.

        Control characters are escaped in the message, but stay unchanged in the note.
        """
        error = RunFailed(self._shown(how))
        error.add_note(self.process.log_tail())
        return error

    def tell_of_waiting(self, waited_s: float) -> None:
        """Log that the server is not ready after ``waited_s`` seconds; quote its last log line."""
        said = [line for line in self.process.log_tail().splitlines() if line.strip()]
        last = f" ({printable(said[-1].strip())[:200]})" if said else ""
        log.info("%s is not ready after %d s%s", self.recipe.name, waited_s, last)


def unwritable(directory: Path) -> str | None:
    """Return the reason why a directory is not writable, such as a full disk, or None."""
    try:
        with TemporaryFile(dir=directory) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None


def start_all(
    recipes: Sequence[Recipe],
    log_dir: Path,
    *,
    timeout_s: float,
    on_ready: OnReady = lambda progress: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[Server]:
    """Start servers, and wait until all servers are ready; call ``on_ready`` with the progress.

    All servers are stopped before an error is raised. Raises RunFailed if a server ends or is not
    ready within ``timeout_s`` seconds, and KeyboardInterrupt if ``interrupted`` returns true.
    """
    servers: list[Server] = []
    try:
        # ``extend`` adds each server at its start, so that ``stop_all`` ends all started servers.
        servers.extend(Server(recipe, log_dir) for recipe in recipes)
        _wait_ready(servers, time.monotonic() + timeout_s, timeout_s, on_ready, interrupted)
    except BaseException:
        stop_all(servers)
        raise
    return servers


def _wait_ready(
    servers: Sequence[Server],
    deadline: float,
    timeout_s: float,
    on_ready: OnReady,
    interrupted: Callable[[], bool],
) -> None:
    waiting = list(servers)
    begun = told = deadline - timeout_s
    on_ready(ServersProgress(0, len(servers)))
    while waiting:
        if interrupted():
            raise KeyboardInterrupt
        still = [server for server in waiting if not server.is_ready()]
        if len(still) < len(waiting):
            on_ready(ServersProgress(len(servers) - len(still), len(servers)))
        elif time.monotonic() > deadline:
            raise still[0].failed(f"was not ready within {timeout_s:g} s")
        else:
            time.sleep(POLL_S)
        waiting = still
        if waiting and time.monotonic() - told >= TELL_S:
            told = time.monotonic()
            waiting[0].tell_of_waiting(told - begun)
    for server in servers:
        # A server may have ended after it was ready, while other servers were still starting.
        server.check_running()


def stop_all(servers: Sequence[Server]) -> None:
    """End several servers in parallel, and wait until all of them have ended."""
    for server in servers:
        server.process.ask_to_stop()
    for server in servers:
        server.process.stop()


@dataclass(slots=True)
class _Case:
    """The state of a supervised server process, with times in seconds.

    ``due_s`` is the time of the next restart; None means that the server runs. ``is_over`` is True
    if the server's machine is lost, so that no restart is possible.
    """

    started_s: float
    pause_s: float = field(default_factory=lambda: FIRST_PAUSE_S)
    due_s: float | None = None
    is_over: bool = False


class Supervisor:
    """A supervisor that restarts servers whose process has exited, on their old ports.

    The pauses before the restarts of a server are 1, 2, 4 ... 60 s.
    """

    def __init__(self, servers: Sequence[Server], now_s: Callable[[], float]) -> None:
        self._servers = servers
        self._now_s = now_s
        self._cases = [_Case(now_s()) for _ in servers]

    def restart_ended(self) -> None:
        """Find servers whose process has exited, and restart each such server after its pause."""
        for server, case in zip(self._servers, self._cases, strict=True):
            if not server.has_ended or case.is_over:
                continue
            if case.due_s is None:
                self._noticed(server, case)
            elif case.due_s <= self._now_s():
                case.due_s, case.started_s = None, self._now_s()
                server.start_again()
                log.warning("%s is started again", server.recipe.name)

    def _noticed(self, server: Server, case: _Case) -> None:
        server.deaths += 1
        if server.recipe.place.is_lost:
            case.is_over = True
            log.warning("%s; it cannot be started again", server.how_it_ended())
            return
        now_s = self._now_s()
        if now_s - case.started_s >= STEADY_S:
            case.pause_s = FIRST_PAUSE_S
        case.due_s = now_s + case.pause_s
        log.warning("%s; restart in %g s", server.how_it_ended(), case.pause_s)
        case.pause_s = min(2 * case.pause_s, LONGEST_PAUSE_S)


@contextmanager
def supervised(servers: Sequence[Server]) -> Iterator[None]:
    """Start a thread that restarts ended servers until the ``with`` block ends."""
    supervisor, over = Supervisor(servers, time.monotonic), Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            supervisor.restart_ended()

    thread = Thread(target=watch, name="supervisor", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
