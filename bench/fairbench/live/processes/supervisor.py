"""The supervisor: restarts a server that ends, after a pause that grows each time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread

from fairbench.live.processes.start import Server

LOOK_S = 0.5
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
STEADY_S = 60.0  # once it has run so long, its next end counts as the first

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Case:
    """A watched server. ``due_s`` is the time of its next start (None if it runs).

    ``is_over`` once it cannot be started any more.
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
