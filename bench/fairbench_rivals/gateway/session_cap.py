"""A gate that limits the number of open sessions; additional sessions wait."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.schedulers.params import Positive, PositiveInt
from fairbench_rivals.gateway.session_gate import GateSession, SessionGate


@dataclass(slots=True, eq=False)
class OpenSession(GateSession):
    """A session whose turns are sent only while the session is open."""

    is_open: bool = False


class SessionCap(SessionGate[OpenSession]):
    """At most ``most`` sessions are open in the cluster; other sessions wait in order of arrival.

    The gate is the simplest reading of llm-d-router issue 2348, which asks for a limit on
    concurrent sessions without stating an algorithm. The turns of an open session are sent at once.
    A session is closed when it ends, or after ``idle_s`` seconds without a turn; after such a
    pause, its next turn waits like a new session.
    """

    name = "session-cap"

    @dataclass(frozen=True)
    class Params:
        """``most`` limits the number of open sessions in the cluster.

        A session is closed after ``idle_s`` idle seconds. Issue 2348 names no numbers, so the
        defaults are fairbench's own.
        """

        most: PositiveInt = 64
        idle_s: Positive = 60.0

    def __init__(self, params: Params) -> None:
        super().__init__()
        self.params = params

    def make_session(self, number: int) -> OpenSession:
        return OpenSession(number)

    def lets_pass(self, session: OpenSession, now_s: float) -> bool:
        self._close_idle(now_s)
        if not session.is_open and not self.waits:
            session.is_open = len(self._open()) < self.params.most
        return session.is_open

    def review(self, now_s: float) -> None:
        """Close sessions that were idle for too long, and open waiting sessions in their place."""
        self._close_idle(now_s)
        free = self.params.most - len(self._open())
        while self.waits and free > 0:
            session = self.sessions[next(iter(self.waits))]
            session.is_open = True
            free -= 1
            self.let_go(session)

    def review_s(self, now_s: float) -> float:
        """Return the time at which the next idle session will be closed."""
        idle = [one.idle_since_s for one in self._open() if not one.is_busy]
        return min(idle, default=float("inf")) + self.params.idle_s

    def _open(self) -> list[OpenSession]:
        return [session for session in self.sessions.values() if session.is_open]

    def _close_idle(self, now_s: float) -> None:
        for session in self._open():
            if not session.is_busy and now_s >= session.idle_since_s + self.params.idle_s:
                session.is_open = False
