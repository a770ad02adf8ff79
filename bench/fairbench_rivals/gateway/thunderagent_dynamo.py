"""Dynamo's port of ThunderAgent, which pauses sessions before a replica's memory is full."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.core import Request
from fairbench_rivals.gateway.pausing_gate import (
    PlacedSession,
    PlacementParams,
    TickGate,
    decayed,
    whole,
)

HALF_LIFE_S = 1.0
# Turns of sessions are sorted by arrival. A turn that has waited is sorted as if the turn had
# arrived 1 s earlier, and a demoted turn as if it had arrived 2 s later.
WAITED_S, DEMOTED_S = 1.0, -2.0
DEMOTED_TICKS = 1.5


@dataclass(slots=True, eq=False)
class DemotableSession(PlacedSession):
    """A session whose turns are sorted as if they arrived later, until ``demoted_until_s``."""

    demoted_until_s: float = 0.0


class ThunderAgentDynamo(TickGate[DemotableSession]):
    """A variant of ThunderAgent: a KV pool above 95% is emptied to 80% and refilled to 85%.

    The rules are those of Dynamo's router (ai-dynamo/dynamo @08cda654,
    components/src/dynamo/thunderagent_router/router.py). A new session goes to the least loaded
    replica among the replicas with enough free memory. A turn that has waited for ``forced_s``
    seconds goes to the replica with the most free tokens. When a replica is chosen, the counted
    tokens of an idle session are halved for every idle second. Paused sessions are sorted by their
    full number of tokens, regardless of idle time. A session is forgotten after 600 idle seconds.

    After a periodic check that finds 80% to 95% of a replica's KV pool in use, turns of the
    replica's sessions are sorted for 7.5 s as if they had arrived 2 s later. A turn that has waited
    at the gate is sorted as if it had arrived 1 s earlier. Dynamo also sorts the engine's queue by
    changed arrival times; fairbench only sorts turns that wait for the saturation detector.
    Dynamo's limit on busy sessions, which an SGLang worker may report, is not modelled.
    """

    name = "thunderagent-dynamo"
    Params = PlacementParams
    PAUSE_ABOVE = 0.95
    PAUSE_TO = 0.80
    RESUME_TO = 0.85
    FORGET_S = 600.0
    STREAM_STEP = 1

    def make_session(self, number: int) -> DemotableSession:
        return DemotableSession(number)

    def size(self, session: DemotableSession) -> int:
        return session.tokens

    def newcomer_loads(self, now_s: float) -> dict[int, float]:
        loads = self.loads(decayed(now_s, HALF_LIFE_S))
        return {worker: use.total for worker, use in loads.items()}

    def forced_worker(self, session: DemotableSession) -> int:
        rooms = self.rooms(decayed(self._now_s, HALF_LIFE_S))
        return max(rooms, key=rooms.__getitem__)

    def tick(self, now_s: float) -> bool:
        pool_tokens, loads = self.setup.pool_tokens, self.loads(whole)
        for worker, session in self.active():
            use = loads.get(worker)
            if use and self.PAUSE_TO * pool_tokens <= use.total < self.PAUSE_ABOVE * pool_tokens:
                session.demoted_until_s = now_s + DEMOTED_TICKS * self.tick_s
        return super().tick(now_s)

    def rank(self, request: Request, waited: bool, now_s: float) -> float:
        session = self.sessions[request]
        jump_s = WAITED_S if waited else 0.0
        if session.demoted_until_s > now_s:
            jump_s += DEMOTED_S
        return request.arrival_s - jump_s
