"""Continuum's TTL, which pins a session's KV cache for a time learned from gaps between turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, sqrt
from statistics import fmean

from sortedcontainers import SortedList

from fairbench.core import Request
from fairbench.schedulers.eviction.policies import EvictionPolicy, Leaf, Rank
from fairbench.schedulers.params import NoParams
from fairbench.schedulers.program_states import IDLE_PROGRAMS, has_program

# A session's KV cache is pinned for ``FIRST_TTL_S`` seconds until more than ``FEW_GAPS`` gaps
# between turns are known.
FEW_GAPS, MOST_GAPS = 100, 4_096
FIRST_TTL_S = 2.0
REBUILD_S = 2.0  # assumed time in seconds to compute the context of an evicted session again
WAITS = 100


class ContinuumTTL(EvictionPolicy):
    """A policy that pins the KV cache of a session between two turns for a time to live (TTL).

    The rules come from michiLXY03/vllm-continuum-plugin @3ad3785b and @37a9ab70 (policy.py,
    scheduler.py). Until more than 100 gaps between two turns of a session are known, the TTL is 2
    s. With more gaps, the TTL is 0 or one of the last 4,096 gaps: the smallest t that maximises
    F(t) x B - t. F(t) is the fraction of the last 4,096 gaps that are at most t, and B is the
    benefit of a pin. The benefit of a pin is Q x eta + 2 s, where Q is the mean wait of the last
    100 turns that arrived after the end of their pins, and eta is ``TurnCorrelation.eta``. The last
    turn of a session and requests without a session are not pinned.

    Continuum records gaps by tool. fairbench's requests do not name tools, so all gaps count as
    gaps of a single tool. Continuum's own order of the waiting queue is not included. If memory is
    short, Continuum unpins the session that arrived last, but this policy removes the pin that
    would end first. The prefix of a waiting request is evicted last, even if its pin has expired.
    """

    name = "continuum-ttl"
    Params = NoParams
    reads_clock = True

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        # sessions by program number, in ascending order of the end of their last turn
        self._sessions: dict[int, PinnedSession] = {}
        self._gaps_s: deque[float] = deque()
        self._sorted_s = SortedList()
        self._waits_s: deque[float] = deque(maxlen=WAITS)
        self._memory = TurnCorrelation()

    def rank(self, leaf: Leaf) -> Rank:
        return inf if leaf.awaited else leaf.keep_s, leaf.access

    def on_start(self, request: Request, now_s: float) -> None:
        session = self._sessions.get(request.program_id)
        if session is None or not has_program(request) or request.arrival_s < session.ended_s:
            return
        gap_s = request.arrival_s - session.ended_s
        self._gaps_s.append(gap_s)
        self._sorted_s.add(gap_s)
        if len(self._gaps_s) > MOST_GAPS:
            self._sorted_s.remove(self._gaps_s.popleft())
        if request.arrival_s >= session.pinned_until_s:
            self._waits_s.append(now_s - request.arrival_s)
        session.ended_s = inf

    def on_finish(self, request: Request, now_s: float) -> float:
        if not has_program(request):
            return now_s
        session = self._sessions.pop(request.program_id, None) or PinnedSession()
        session.turns += 1
        if request.calls_left == 0:
            self._memory.learn(session.turns)
            return now_s
        session.ended_s, session.pinned_until_s = now_s, now_s + self.ttl_s()
        self._sessions[request.program_id] = session
        if len(self._sessions) > IDLE_PROGRAMS:
            del self._sessions[next(iter(self._sessions))]
        return session.pinned_until_s

    def ttl_s(self) -> float:
        """Return for how many seconds the cache of a turn that ends now is pinned."""
        if len(self._gaps_s) <= FEW_GAPS:
            return FIRST_TTL_S
        mean_wait_s = fmean(self._waits_s) if self._waits_s else 0.0
        return best_ttl_s(self._sorted_s, mean_wait_s * self._memory.eta + REBUILD_S)


@dataclass(slots=True)
class PinnedSession:
    """A session that will continue; its cached tokens are pinned until ``pinned_until_s``.

    ``turns`` is the number of ended turns. ``ended_s`` is the time at which the last turn ended, or
    inf while the next turn runs.
    """

    turns: int = 0
    ended_s: float = inf
    pinned_until_s: float = 0.0


class TurnCorrelation:
    """An estimate of how well the number of ended turns predicts the number of remaining turns."""

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._yy = self._xy = 0

    def learn(self, turns: int) -> None:
        """Record how many turns have ended and how many remain after each turn of a session."""
        for ended in range(1, turns + 1):
            left = turns - ended
            self._n += 1
            self._x += ended
            self._y += left
            self._xx += ended * ended
            self._yy += left * left
            self._xy += ended * left

    @property
    def eta(self) -> float:
        """The negated correlation between ended and remaining turns of sessions; 1 if undefined."""
        n = self._n
        spread = (n * self._xx - self._x**2) * (n * self._yy - self._y**2)
        return (self._x * self._y - n * self._xy) / sqrt(spread) if spread > 0 else 1.0


def best_ttl_s(gaps_s: Iterable[float], benefit_s: float) -> float:
    """Return the TTL (s) with the largest net benefit, among 0 and the sorted ``gaps_s``."""
    gaps_s = list(gaps_s)
    best_s = best = 0.0
    for count, gap_s in enumerate(gaps_s, start=1):
        if gap_s > benefit_s:
            # A pin that lasts longer than ``benefit_s`` costs more than it saves.
            break
        if (value := count / len(gaps_s) * benefit_s - gap_s) > best:
            best_s, best = gap_s, value
    return best_s
