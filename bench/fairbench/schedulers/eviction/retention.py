"""Retention: the tokens of a session stay until its next call is expected, as in Continuum."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated

from annotated_types import Ge, Gt

from fairbench.core import Request
from fairbench.schedulers.eviction.policy import EvictionPolicy, Leaf, Rank
from fairbench.schedulers.local.programs import IDLE_PROGRAMS, has_program


class Retention(EvictionPolicy):
    """Keeps a session's cache until its expected return, then evicts in order of that time.

    The expected return is the end of the session's last call plus the mean time that sessions of
    its client have taken between calls. Nothing is kept for a client whose calls are known to have
    ended, nor for a request without a session. Under pressure kept tokens are evicted, too,
    starting with those of the earliest expected return; the prefix of a waiting request goes last.
    """

    name = "retention"

    @dataclass(frozen=True)
    class Params:
        """Parameters of retention.

        ``first_s`` is the gap that is assumed before any gap was observed, in seconds. ``most_s``
        is the longest time for which tokens are kept, ``factor`` multiplies the mean gap, and
        ``newest`` is the weight of the newest gap in the running mean.
        """

        first_s: Annotated[float, Ge(0)] = 10.0
        most_s: Annotated[float, Ge(0)] = 300.0
        factor: Annotated[float, Gt(0)] = 1.5
        newest: Annotated[float, Gt(0)] = 0.2

    def __init__(self, params: Params) -> None:
        self.params = params
        self._ended_s: dict[int, float] = {}  # the last end of a call, by program
        self._gap_s: dict[str, float] = {}  # the running mean, by client

    def rank(self, leaf: Leaf) -> Rank:
        return inf if leaf.awaited else leaf.keep_s, leaf.access

    def on_start(self, request: Request) -> None:
        ended_s = self._ended_s.pop(request.program_id, None)
        if ended_s is None or (gap_s := request.arrival_s - ended_s) < 0:
            return
        mean_s = self._gap_s.get(request.client, gap_s)
        self._gap_s[request.client] = mean_s + min(self.params.newest, 1) * (gap_s - mean_s)

    def on_finish(self, request: Request, now_s: float) -> float:
        self._ended_s.pop(request.program_id, None)
        if request.calls_left == 0 or not has_program(request):
            return now_s
        self._ended_s[request.program_id] = now_s
        if len(self._ended_s) > IDLE_PROGRAMS:
            del self._ended_s[next(iter(self._ended_s))]
        gap_s = self._gap_s.get(request.client, self.params.first_s)
        return now_s + min(self.params.most_s, self.params.factor * gap_s)
