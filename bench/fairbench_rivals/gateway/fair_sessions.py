"""Fair sessions, fairbench's own gate, which divides KV memory fairly among clients' sessions."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from fairbench.core import OUTPUT_PRICE, Prompt, Request, prompt_tokens
from fairbench.schedulers.accounts.counters import Counters
from fairbench.schedulers.base import Read, Setup, WaitingView
from fairbench.schedulers.params import PositiveInt
from fairbench_rivals.gateway.pausing_gate import PlacedSession, PlacementGate, whole

# seconds without a running turn after which a session may be paused to free memory
IDLE_S = 30.0


@dataclass(slots=True, eq=False)
class VisitingSession(PlacedSession):
    """A session whose context stays in memory for a few turns.

    ``visit_turns`` counts the turns since the session was last resumed. ``running`` holds the
    session's unfinished turns; a session with sub-agents may have several. ``longest`` is the
    session's longest prompt so far.
    """

    visit_turns: int = 0
    running: dict[Request, None] = field(default_factory=dict)
    longest: Prompt = ()

    def count_tokens(self) -> None:
        """Set ``tokens`` to the total length of the distinct segments of the session's prompts."""
        prompts = [self.longest, *(one.prompt for one in self.running)]
        known = {segment.key: segment.length for prompt in prompts for segment in prompt}
        self.tokens = sum(known.values())


class FairSessions(PlacementGate[VisitingSession]):
    """A gate that pauses a session after a few turns if a client with less service waits.

    Each client has a counter of its service, as in VTC ([VTC] Alg. 2). The waiting client with the
    lowest counter resumes its longest waiting session, at the session's last replica if possible,
    so that cached prefixes are used. If the next session to resume does not fit into memory, all
    other waiting sessions wait, too. A visit (a session's stay in memory) ends after ``turns``
    turns, or when the session has been idle for 30 s. An idle session whose visit has ended is
    paused to free memory for a waiting session. Before its next turn, an active session waits if
    the counter of any waiting client is at most the counter of the session's own client.

    If K sessions fit into memory, and a turn has at most L_in input and L_out output tokens, a
    client's counter is at most K x ``turns`` x (L_in + w_out x L_out) above the counter of a
    waiting client. The bound holds because a client with a higher counter than a waiting client
    resumes no session. Each session in memory has at most ``turns`` turns before the session waits.
    A session with sub-agents waits only when none of its turns runs.
    """

    name = "fair-sessions"
    FORGET_S = 3600.0

    @dataclass(frozen=True)
    class Params:
        """``turns`` is the number of turns after which a session's visit (stay in memory) ends."""

        turns: PositiveInt = 4

    def __init__(self, params: Params) -> None:
        super().__init__()
        self.params = params
        self.account = Counters(OUTPUT_PRICE)

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self.account.prepare(setup)

    def make_session(self, number: int) -> VisitingSession:
        return VisitingSession(number)

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        busy = {one.client for one in self.sessions.values() if one.is_busy}
        self.account.enter(request.client, busy)
        super().on_arrival(request, view, now_s)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        super().on_admitted(request, extend_tokens, recompute)
        self.account.picked(request.client)
        self.account.charge(request.client, request.input_tokens)

    def on_answer(self, request: Request, read: Read, output_tokens: int, now_s: float) -> None:
        super().on_answer(request, read, output_tokens, now_s)
        inputs = read.input_tokens - request.input_tokens
        self.account.charge(request.client, inputs + OUTPUT_PRICE * output_tokens)

    def balances(self) -> dict[str, float]:
        return self.account.balances()

    def on_turn(self, session: VisitingSession, request: Request) -> None:
        session.running[request] = None
        if request.input_tokens >= prompt_tokens(session.longest):
            session.longest = request.prompt
        session.count_tokens()

    def on_turn_end(self, session: VisitingSession, request: Request, tokens: int) -> None:
        """Do nothing, because the next prompt of the session will contain the answer."""

    def on_finish(self, request: Request) -> None:
        session = self.sessions[request]
        session.running.pop(request, None)
        session.count_tokens()
        super().on_finish(request)

    def lets_pass(self, session: VisitingSession, now_s: float) -> bool:
        if self.is_placed(session) and not self._makes_way(session):
            session.visit_turns += 1
            return True
        if session.pool_place is None:
            self.enter_pool(session)
        return False

    def resume(self, session: VisitingSession, worker: int) -> None:
        session.visit_turns = len(session.waiting)
        super().resume(session, worker)

    def tick(self, now_s: float) -> bool:
        """Pause idle sessions of replicas without enough memory; return whether any was paused."""
        self.forget_idle(now_s)
        changed = False
        for worker, room in self.rooms(whole).items():
            if room < 0:
                idle = [one for one in self.sessions_at(worker) if not one.is_busy]
                changed |= self._take_room(worker, 0.0, idle) != room
        return changed

    def review(self, now_s: float) -> None:
        """Resume sessions of the least served clients until a session does not fit into memory."""
        while self.waits:
            session = self.sessions[self._next()]
            required = min(session.required, self.setup.pool_tokens)
            worker = self._target(session, required)
            if self._take_room(worker, required, self._leaving(worker)) < required:
                return
            self.resume(session, worker)

    def review_s(self, now_s: float) -> float:
        """Return when the next idle session may be paused to free memory, or inf if none may."""
        ends_s = (self._idle_until_s(one) for _, one in self.active() if not one.is_busy)
        return min((end_s for end_s in ends_s if end_s > now_s), default=inf)

    def _idle_until_s(self, session: VisitingSession) -> float:
        return session.idle_since_s + IDLE_S

    def _next(self) -> Request:
        """Return the longest waiting turn of the waiting client with the lowest counter."""
        longest: dict[str, Request] = {}
        for request in self.waits:
            longest.setdefault(request.client, request)
        return longest[self.account.least(longest)]

    def _makes_way(self, session: VisitingSession) -> bool:
        """Return whether the session's new turn must wait for a client with a lower counter."""
        if not self.waits or session.visit_turns < self.params.turns or session.unfinished > 1:
            return False
        counters = self.account.balances()
        return counters[self._next().client] <= counters[session.client]

    def _target(self, session: VisitingSession, required: int) -> int:
        """Return the replica at which a session that needs ``required`` tokens is resumed.

        The session's last replica is chosen if pausing idle sessions can free enough memory there,
        otherwise the replica with the most free memory. If no replica has enough free memory, the
        session goes to the replica with the most free memory after pausing idle sessions.
        """
        free = self.rooms(whole)
        made = {
            worker: room + sum(one.required for one in self._leaving(worker))
            for worker, room in free.items()
        }
        own = session.origin
        if own is not None and made.get(own, 0.0) >= required:
            return own
        emptiest = max(free, key=free.__getitem__)
        return emptiest if free[emptiest] >= required else max(made, key=made.__getitem__)

    def _leaving(self, worker: int) -> list[VisitingSession]:
        return [
            one for one in self.sessions_at(worker)
            if not one.is_busy and (
                one.visit_turns >= self.params.turns or self._idle_until_s(one) <= self._now_s
            )
        ]  # fmt: skip

    def _take_room(self, worker: int, required: float, leaving: list[VisitingSession]) -> float:
        """Pause sessions until ``required`` tokens are free at a replica; return the free tokens.

        If pausing all ``leaving`` sessions would free too few tokens, none is paused.
        """
        room = self.rooms(whole)[worker]
        if room + sum(one.required for one in leaving) < required:
            return room
        counters = self.account.balances()
        for session in sorted(leaving, key=lambda one: (-counters[one.client], one.idle_since_s)):
            if room >= required:
                break
            self.enter_pool(session)
            room += session.required
        return room
