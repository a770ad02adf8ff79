"""Base classes of gates that pause sessions while the replicas' KV memory is full."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import ClassVar, Literal, NamedTuple, TypeVar

from fairbench.core import Request
from fairbench.schedulers.params import Positive
from fairbench_rivals.gateway.session_gate import GateSession, SessionGate

# number of tokens that a replica reserves for a session in addition to its context
BUFFER = 100


@dataclass(slots=True, eq=False)
class PlacedSession(GateSession):
    """A session that is either active at a replica or paused without a replica.

    - ``worker`` is the replica of an active session. ``origin`` is the last replica of a paused
      session, or None for a new session.
    - ``pool_place`` is the position in the pool of paused sessions, or None outside the pool.
    - ``pool_tokens`` is the session's size in tokens when the session entered the pool of paused
      sessions.
    - ``is_marked`` means that the session will be paused when its turn ends.
    - ``streams`` maps each unfinished turn to the number of output tokens counted so far.
    """

    worker: int | None = None
    origin: int | None = None
    pool_place: int | None = None
    pool_tokens: int = 0
    is_marked: bool = False
    streams: dict[Request, int] = field(default_factory=dict)

    @property
    def required(self) -> int:
        """The KV memory in tokens that the session needs: its context and a buffer."""
        return self.tokens + BUFFER


class Use(NamedTuple):
    """The load of a replica: the total tokens and the number of its active sessions."""

    tokens: float
    sessions: int

    @property
    def total(self) -> float:
        """The tokens of all active sessions, including a buffer for each session."""
        return self.tokens + BUFFER * self.sessions


ADMISSIONS: Mapping[str, Callable[[PlacedSession], int]] = {
    "smallest": lambda session: session.tokens,
    "largest": lambda session: -session.tokens,
    "fifo": lambda session: session.number,
}


@dataclass(frozen=True)
class PlacementParams:
    """Parameters that all variants of ThunderAgent share.

    ``admit`` chooses which new session is admitted first: the session with the fewest tokens
    (``smallest``, as published), with the most tokens (``largest``) or the oldest (``fifo``). The
    values ``largest`` and ``fifo`` of ``admit`` come from SARPAT/thunderagent-churn-study. A turn
    that has waited for ``forced_s`` seconds is sent even without free memory.
    """

    admit: Literal["smallest", "largest", "fifo"] = "smallest"
    forced_s: Positive = 1800.0


P = TypeVar("P", bound=PlacedSession)


class PlacementGate(SessionGate[P]):
    """A gate that assigns each active session to a replica; paused sessions wait for free memory.

    The free memory (room) of a replica is its KV pool minus the tokens of its active sessions, and
    minus 100 tokens for each active session. All turns of an active session are sent to its
    replica. Subclasses decide when to pause and resume sessions.
    """

    # seconds after which an idle session is forgotten
    FORGET_S: ClassVar[float] = inf

    def __init__(self) -> None:
        super().__init__()
        self._places = count()

    def place(self, request: Request, now_s: float) -> int | None:
        """Return the replica of the request's session, or None if the session is paused."""
        return self.sessions[request].worker

    def active(self) -> Iterator[tuple[int, P]]:
        """Yield pairs of a replica and an active session, in the sessions' order of arrival."""
        known = self.sessions.values()
        return ((one.worker, one) for one in known if one.worker is not None)

    def pool(self) -> list[P]:
        """Return all waiting sessions, paused or new, in order of decreasing wait."""
        found = (one for one in self.sessions.values() if one.pool_place is not None)
        return sorted(found, key=lambda session: session.pool_place or 0)

    def enter_pool(self, session: P) -> None:
        """Add a session, paused or new, to the pool of sessions that wait for memory."""
        session.origin = session.worker if session.worker is not None else session.origin
        session.worker, session.is_marked = None, False
        session.pool_place, session.pool_tokens = next(self._places), session.tokens

    def resume(self, session: P, worker: int) -> None:
        """Assign a session to a replica, and send its waiting turns."""
        session.worker, session.pool_place = worker, None
        self.let_go(session)

    def sessions_at(self, worker: int) -> list[P]:
        """Return the active sessions of a replica, in order of first arrival."""
        return [session for at, session in self.active() if at == worker]

    def forget_idle(self, now_s: float) -> None:
        """Forget the sessions that have been idle for longer than ``FORGET_S`` seconds."""
        self.sessions.forget_idle(lambda session: session.idle_s(now_s) >= self.FORGET_S)

    def loads(self, tokens: Callable[[PlacedSession], float]) -> dict[int, Use]:
        """Return the load of each replica; the function ``tokens`` counts a session's tokens."""
        assert self.setup.fleet is not None, f"{self.name} needs to see the workers"
        uses = dict.fromkeys(self.setup.fleet.workers(), Use(0.0, 0))
        for worker, session in self.active():
            if (use := uses.get(worker)) is not None:
                uses[worker] = Use(use.tokens + tokens(session), use.sessions + 1)
        return uses

    def rooms(
        self, tokens: Callable[[PlacedSession], float], part: float = 1.0
    ) -> dict[int, float]:
        """Return each replica's free tokens, counting only the fraction ``part`` of its pool."""
        most = part * self.setup.pool_tokens
        return {worker: most - use.total for worker, use in self.loads(tokens).items()}

    def is_placed(self, session: P) -> bool:
        """Return whether the session is assigned to a replica.

        If the session's replica has left, the replica with the most free memory gets the session.
        """
        if session.worker is None:
            return False
        assert self.setup.fleet is not None, f"{self.name} needs to see the workers"
        if session.worker not in self.setup.fleet.workers():
            rooms = self.rooms(whole)
            session.worker = max(rooms, key=rooms.__getitem__)
        return True


class PausingGate(PlacementGate[P]):
    """A variant of ThunderAgent: full replicas pause idle sessions, and no turn waits forever.

    Turns of an active session are sent; turns of a paused session are queued. The output tokens of
    a streaming answer are added to its session's tokens, ``STREAM_STEP`` at a time. If the host
    does not report streamed tokens, an answer's tokens are added when its turn ends.
    """

    # used fraction of a replica's KV pool above which the gate pauses the replica's sessions
    PAUSE_ABOVE: ClassVar[float] = 1.0
    # used fraction of the KV pool down to which the gate pauses sessions of a full replica
    PAUSE_TO: ClassVar[float] = 1.0
    # number of streamed tokens between two updates of a session's token count
    STREAM_STEP: ClassVar[int] = 20

    def __init__(self, params: PlacementParams) -> None:
        super().__init__()
        self.params = params
        self._turns: dict[Request, P] = {}  # the session of each unfinished turn

    def on_turn(self, session: P, request: Request) -> None:
        self._turns[request] = session
        session.streams[request] = 0
        super().on_turn(session, request)

    def on_finish(self, request: Request) -> None:
        self._turns.pop(request).streams.pop(request, None)
        super().on_finish(request)

    def on_idle(self, session: P, now_s: float) -> None:
        if session.is_marked:
            self.enter_pool(session)

    def loads(self, tokens: Callable[[PlacedSession], float]) -> dict[int, Use]:
        self.count_streams()
        return super().loads(tokens)

    def count_streams(self) -> None:
        """Add the output tokens that have streamed since the last call to their sessions."""
        if self.setup.streamed is None:
            return
        for request, produced in self.setup.streamed().items():
            if (session := self._turns.get(request)) is None:
                continue  # another router has sent this turn
            counted = produced - produced % self.STREAM_STEP
            if (more := counted - session.streams.get(request, counted)) > 0:
                session.streams[request] = counted
                self.on_streamed(session, more)

    def on_streamed(self, session: P, tokens: int) -> None:
        """Add ``tokens`` streamed output tokens to the session's context length."""
        session.tokens += tokens

    def pause(self) -> bool:
        """Pause sessions of full replicas; return whether any session changed.

        The idle sessions with the fewest tokens are paused first. If pausing all idle sessions
        frees too little memory, each busy session is marked, to be paused when its turn ends.
        """
        most = self.PAUSE_TO * self.setup.pool_tokens
        changed = False
        for worker, use in self.loads(whole).items():
            used = use.total
            if used <= self.PAUSE_ABOVE * self.setup.pool_tokens:
                continue
            mine = self.sessions_at(worker)
            for session in sorted(mine, key=whole):
                if used > most and not session.is_busy:
                    self.enter_pool(session)
                    used -= session.required
                    changed = True
            if used > most:
                for session in mine:
                    changed |= session.is_busy and not session.is_marked
                    session.is_marked |= session.is_busy
        return changed

    def force_waits(self) -> None:
        """Resume every session whose turn has waited for ``forced_s`` seconds."""
        while self.waits:
            request, since_s = next(iter(self.waits.items()))
            if since_s + self.params.forced_s > self._now_s:
                return
            session = self.sessions[request]
            self.resume(session, self.forced_worker(session))

    def forced_worker(self, session: P) -> int:
        """Return the replica at which a session resumes after waiting for ``forced_s`` seconds.

        By default, the replica with the most free memory is chosen, even if the session needs more
        memory.
        """
        rooms = self.rooms(whole)
        return max(rooms, key=rooms.__getitem__)

    def review(self, now_s: float) -> None:
        self.force_waits()

    def review_s(self, now_s: float) -> float:
        return next(iter(self.waits.values())) + self.params.forced_s


def whole(session: PlacedSession) -> float:
    """Return the session's tokens without a decay for the time that the session was idle."""
    return session.tokens


def decayed(now_s: float, half_life_s: float) -> Callable[[PlacedSession], float]:
    """Return a function that halves a session's tokens for every ``half_life_s`` idle seconds."""
    return lambda session: session.tokens * 2.0 ** (-session.idle_s(now_s) / half_life_s)


class TickGate(PausingGate[P]):
    """A gate that, at each tick, first resumes sessions and then pauses sessions."""

    # maximum used fraction of the KV pool up to which the gate resumes sessions
    RESUME_TO: ClassVar[float] = 1.0

    def lets_pass(self, session: P, now_s: float) -> bool:
        if self.is_placed(session):
            return True
        if session.pool_place is not None:
            return False
        worker = None if self.pool() else self.newcomer_worker(session, now_s)
        if worker is None:
            self.enter_pool(session)
            return False
        session.worker = worker
        return True

    def newcomer_worker(self, session: P, now_s: float) -> int | None:
        """Return the least loaded replica that has enough memory for a new session, or None."""
        rooms, loads = self.rooms(whole), self.newcomer_loads(now_s)
        fitting = [worker for worker, room in rooms.items() if room >= session.required]
        return min(fitting, key=loads.__getitem__, default=None)

    def newcomer_loads(self, now_s: float) -> dict[int, float]:
        """Return each replica's load; a new session goes to the replica with the lowest load."""
        return {worker: use.tokens for worker, use in self.loads(whole).items()}

    def size(self, session: P) -> int:
        """Return a session's number of tokens, by which paused sessions are sorted."""
        return session.pool_tokens

    def weighed(self, now_s: float) -> Callable[[PlacedSession], float]:
        """Return a function from a session to the tokens that count as its KV memory."""
        return whole

    def tick(self, now_s: float) -> bool:
        self.forget_idle(now_s)
        resumed = self.resume_fitting(now_s)
        return self.pause() or resumed

    def resume_fitting(self, now_s: float) -> bool:
        """Resume paused sessions that fit into free memory; return whether any was resumed.

        In the order of ``queue``, each session that fits into the remaining free memory of all
        replicas is chosen. The largest chosen session is placed first, on the replica with the most
        free tokens.
        """
        rooms = self.rooms(self.weighed(now_s), self.RESUME_TO)
        free = [(room, worker) for worker, room in rooms.items() if room > BUFFER]
        left = sum(room for room, _ in free)
        chosen: list[P] = []
        for session in self.queue():
            if session.required <= left:
                chosen.append(session)
                left -= session.required
        resumed = False
        for session in sorted(chosen, key=whole, reverse=True):
            free.sort(key=lambda one: one[0], reverse=True)
            if not free or session.required > free[0][0]:
                continue
            room, worker = free.pop(0)
            self.resume(session, worker)
            resumed = True
            if room - session.required > BUFFER:
                free.insert(0, (room - session.required, worker))
        return resumed

    def queue(self) -> list[P]:
        """Return the paused sessions in the order in which they are resumed.

        Sessions with a waiting second or later turn go first, then new sessions (with a waiting
        first turn), then idle sessions. The parameter ``admit`` orders new sessions. In the two
        other groups, sessions with fewer tokens go first.
        """
        admission = ADMISSIONS[self.params.admit]

        def key(session: P) -> tuple[int, int]:
            if session.turns == 1:
                return 1, admission(session)
            return (0 if session.is_busy else 2), self.size(session)

        return sorted(self.pool(), key=key)
