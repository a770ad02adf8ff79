"""Servers: started in parallel, awaited until all are ready, and restarted when they end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event, Thread
from typing import NamedTuple, TypeAlias

from fairbench.errors import RunFailed, printable
from fairbench.live.processes.http import answers
from fairbench.live.processes.process import HERE, Place

log = logging.getLogger(__name__)

POLL_S = 0.1
HEALTH_TIMEOUT_S = 5.0
# words in a server's log, in lower case, for a port that is taken
TAKEN = ("address already in use", "address in use")
PROBE_BYTES = 2**16
TELL_S = 30.0  # seconds between two lines about servers that are not ready
MAX_STARTS = 5  # attempts to start one server whose port was taken each time
LOOK_S = 0.5
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
STEADY_S = 60.0  # seconds after which the next end of a server counts as its first


class ServersProgress(NamedTuple):
    """The number of servers that are ready."""

    ready: int
    total: int


OnReady: TypeAlias = Callable[[ServersProgress], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe for starting a server. ``command`` gets ``ports`` free ports, the HTTP port first.

    The server is ready once ``health`` answers with success, or once ``ready`` returns True for its
    HTTP root. ``kv_events`` is the address of its KV events, with ``host`` and the second port.
    """

    name: str
    command: Callable[[Sequence[int]], list[str]]
    ports: int = 1
    health: str = "/health"
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[str], bool] | None = None
    kv_events: str = "tcp://{host}:{port}"
    place: Place = HERE


class Server:
    """A server that is started from its recipe, on its own ports."""

    def __init__(self, recipe: Recipe, log_dir: Path) -> None:
        self.recipe = recipe
        self._log_path = log_dir / f"{recipe.name}.log"
        self.starts = 0
        self.deaths = 0  # number of ends since it was ready
        self.start()

    def start(self) -> None:
        """Start the server on new ports. Precondition: the server does not run."""
        self.starts += 1
        self.ports = self.recipe.place.free_ports(self.recipe.ports)
        self._launch()

    def start_again(self) -> None:
        """Start the server on its old ports, which others know. Precondition: it has ended."""
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
        """Return whether the server is healthy; restart it if it ended because a port was taken.

        Raises RunFailed, with the end of the log, if the server ended for another reason.
        """
        if not self.has_ended:
            if self.recipe.ready is not None:
                return self.recipe.ready(self.url)
            return answers(self.url + self.recipe.health, timeout_s=HEALTH_TIMEOUT_S)
        said = self.process.log_tail().lower()
        if self.starts == MAX_STARTS or not any(text in said for text in TAKEN):
            self.check()
        self.process.stop()
        self.start()
        return False

    def check(self) -> None:
        """Raise RunFailed with the end of the log if the server has ended."""
        if self.has_ended:
            raise self.failed(f"ended with {self.process.ending}")

    def named_with_place(self) -> str:
        """Return the server's name, with its location if the location is lost."""
        place = self.recipe.place
        return f"{self.recipe.name} (with {place.host})" if place.is_lost else self.recipe.name

    def how_it_ended(self) -> str:
        """Describe the server's end in a line, with its cause. Precondition: it has ended."""
        return self._shown(f"ended with {self.process.ending}")

    def last_words(self) -> str:
        """Return the ending and its cause. Precondition: the server has ended."""
        return f"{self.process.ending}{self._cause()}"

    def _cause(self) -> str:
        cause = self.process.cause()
        return f" ({cause})" if cause else ""

    def _said(self) -> str:
        said = [line for line in self.process.log_tail().splitlines() if line.strip()]
        return f" ({printable(said[-1].strip())[:200]})" if said else ""

    def _shown(self, how: str) -> str:
        """Return what happened, and first the disk if it cannot be written, which ends servers."""
        shown = f"{self.recipe.name} {how}{self._cause()}; its log is {self._log_path}"
        directory = self._log_path.parent
        why = unwritable(directory)
        return f"{directory}: cannot be written: {why}, so {shown}" if why else shown

    def failed(self, how: str) -> RunFailed:
        """Return an error with the log's line that explains the end; a note has the log's end.

        The message shows control characters as escapes; the note shows the log unchanged.
        """
        error = RunFailed(self._shown(how))
        error.add_note(self.process.log_tail())
        return error

    def tell_of_waiting(self, waited_s: float) -> None:
        """Log that the server is not ready yet, with the last line of its log."""
        log.info("%s is not ready after %d s%s", self.recipe.name, waited_s, self._said())


def unwritable(directory: Path) -> str | None:
    """Return why a few bytes cannot be written in a directory, such as a full disk, or None."""
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
    """Start servers and wait until all are ready; reports progress to ``on_ready``.

    Raises RunFailed if one ends or is not ready in time, KeyboardInterrupt if ``interrupted``; none
    runs then.
    """
    servers: list[Server] = []
    try:
        # Started one by one, so that the others are known if one cannot be started.
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
        server.check()  # the first server may have ended in the meantime


def stop_all(servers: Sequence[Server]) -> None:
    """End servers in parallel. Returns when all have ended."""
    for server in servers:
        server.process.ask_to_stop()
    for server in servers:
        server.process.stop()


@dataclass(slots=True)
class _Case:
    """A watched server. ``due_s`` is the time of its next start (None if it runs).

    ``is_over`` means that it cannot be started any more.
    """

    started_s: float
    pause_s: float = field(default_factory=lambda: FIRST_PAUSE_S)
    due_s: float | None = None
    is_over: bool = False


class Supervisor:
    """Restarts servers that ended, on their old ports, after pauses of 1, 2, 4 ... 60 s."""

    def __init__(self, servers: Sequence[Server], now_s: Callable[[], float]) -> None:
        self._servers = servers
        self._now_s = now_s
        self._cases = [_Case(now_s()) for _ in servers]

    def look(self) -> None:
        """Detect servers that have ended, and start those whose pause is over."""
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
    """Supervise the servers in a thread until the block ends."""
    supervisor, over = Supervisor(servers, time.monotonic), Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            supervisor.look()

    thread = Thread(target=watch, name="supervisor", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
