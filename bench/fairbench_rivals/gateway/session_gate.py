"""Gates: gateway policies that hold requests (turns) of agent sessions at the gateway."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from itertools import count
from math import floor, inf
from typing import Generic, TypeVar

from fairbench.core import Request
from fairbench.schedulers.base import Read, Selection, WaitingView
from fairbench.schedulers.gateway.policy import FlowPolicy
from fairbench.schedulers.program_states import ProgramStates


@dataclass(slots=True, eq=False)
class GateSession:
    """The state of a session at a session gate.

    - ``number`` is the session's position in the order of first arrivals.
    - ``client`` is the client of the session's latest turn.
    - ``turns`` is the number of turns that the gate has received, and ``unfinished`` is the number
      of unfinished turns.
    - ``waiting`` holds the turns that are queued at the gate, in order of arrival.
    - ``tokens`` is the length of the context: the tokens of the latest prompt and of its answer,
      once the answer has ended.
    - ``idle_since_s`` is the time in seconds at which the last unfinished turn ended.
    """

    number: int
    client: str = ""
    turns: int = 0
    unfinished: int = 0
    waiting: dict[Request, None] = field(default_factory=dict)
    tokens: int = 0
    idle_since_s: float = 0.0

    @property
    def is_busy(self) -> bool:
        """Return whether a turn of the session waits or runs."""
        return self.unfinished > 0

    def idle_s(self, now_s: float) -> float:
        """Return for how many seconds the session has been idle, or 0 if it is busy."""
        return 0.0 if self.is_busy else now_s - self.idle_since_s


S = TypeVar("S", bound=GateSession)


class SessionGate(FlowPolicy, Generic[S]):
    """A policy that queues the turns of a session until a rule allows the session to continue.

    The gate calls ``tick`` every ``tick_s`` seconds, and ``review`` after each arrival, after each
    end of a request, and at the time ``review_s``. A gate whose queue is empty is not called, so it
    makes up for missed calls of ``tick`` at the next event. Without a configured saturation
    detector, the turns of a session that may continue are sent at once. A request without a session
    counts as a session with a single turn.
    """

    work_conserving = False
    needs_sessions = True
    orders_bands = True
    detector = "none"
    tick_s: float = 5.0

    def __init__(self) -> None:
        numbers = count()
        self.sessions: ProgramStates[S] = ProgramStates(lambda: self.make_session(next(numbers)))
        # turns that the gate delays, with their arrival times in seconds, the earliest first
        self.waits: dict[Request, float] = {}
        self._ready: dict[Request, float] = {}  # the rank of each turn that may be sent
        self._next_tick_s = self.tick_s
        self._review_at_s = inf
        self._now_s = 0.0

    # Subclasses define the following methods, which decide when sessions may continue.

    @abstractmethod
    def make_session(self, number: int) -> S:
        """Return the initial state of a session."""

    @abstractmethod
    def lets_pass(self, session: S, now_s: float) -> bool:
        """Return whether the session's latest turn (number ``turns``) may be sent now."""

    def on_turn(self, session: S, request: Request) -> None:
        """Update the session's context length when a turn arrives."""
        session.tokens = request.input_tokens

    def on_turn_end(self, session: S, request: Request, tokens: int) -> None:
        """Update the session's context length when a turn with ``tokens`` tokens in total ends."""
        session.tokens = tokens

    def on_idle(self, session: S, now_s: float) -> None:
        """Handle a session that has become idle, because its last unfinished turn has ended."""

    def tick(self, now_s: float) -> bool:
        """Pause or resume sessions in a periodic check; return whether any session changed."""
        return False

    def review(self, now_s: float) -> None:
        """Resume paused sessions that need not wait for the next periodic check (``tick``)."""

    def review_s(self, now_s: float) -> float:
        """Return the next time at which the gate must call ``review``; inf means never."""
        return inf

    def rank(self, request: Request, waited: bool, now_s: float) -> float:
        """Return the rank of a turn that may be sent; the lowest rank goes first.

        ``waited`` is True if the turn had to wait at the gate. Ranks have an effect only if a
        saturation detector is configured.
        """
        return request.arrival_s

    def let_go(self, session: S) -> None:
        """Allow all queued turns of the session to be sent."""
        for request in session.waiting:
            del self.waits[request]
            self._ready[request] = self.rank(request, True, self._now_s)
        session.waiting.clear()

    # The router calls the following methods of its gateway policy.

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._catch_up(now_s)
        session, _ = self.sessions.begin_call(request)
        session.client = request.client
        session.turns += 1
        session.unfinished += 1
        self.on_turn(session, request)
        if self.lets_pass(session, now_s):
            self._ready[request] = self.rank(request, False, now_s)
        else:
            session.waiting[request] = None
            self.waits[request] = now_s
        self._review()

    def select(self, view: WaitingView, now_s: float) -> Selection:
        self._catch_up(now_s)
        if now_s >= self._review_at_s:
            self._review()
        for request in sorted(self._ready, key=self._ready.__getitem__):
            if not (yield request):
                return

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        del self._ready[request]

    def on_answer(self, request: Request, read: Read, output_tokens: int, now_s: float) -> None:
        self._catch_up(now_s)
        self.on_turn_end(self.sessions[request], request, read.input_tokens + output_tokens)

    def on_finish(self, request: Request) -> None:
        session = self.sessions[request]
        self._ready.pop(request, None)
        if self.waits.pop(request, None) is not None:
            del session.waiting[request]
        session.unfinished -= 1
        if not session.is_busy:
            session.idle_since_s = self._now_s
        if not self.sessions.end_call(request) and not session.is_busy:
            self.on_idle(session, self._now_s)
        self._review()

    def wake_s(self, view: WaitingView, now_s: float) -> float | None:
        return min(self._next_tick_s, self._review_at_s)

    def _review(self) -> None:
        self.review(self._now_s)
        self._review_at_s = self.review_s(self._now_s) if self.waits else inf

    def _catch_up(self, now_s: float) -> None:
        """Call ``tick`` for the periodic checks that are due at ``now_s`` or earlier.

        After a check that changes no session, only the last of the other due checks is carried out.
        """
        changed = False
        while self._next_tick_s <= now_s:
            self._now_s = at_s = self._next_tick_s
            self._next_tick_s += self.tick_s
            if self.tick(at_s):
                changed = True
            else:
                last_s = self.tick_s * floor(now_s / self.tick_s)
                self._next_tick_s = max(self._next_tick_s, last_s)
        self._now_s = now_s
        if changed:
            self._review()
