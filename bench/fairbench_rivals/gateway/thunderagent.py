"""ThunderAgent: a session whose context does not fit into KV memory is paused between turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairbench.schedulers.params import NotNegative
from fairbench_rivals.gateway.pausing_gate import (
    PlacedSession,
    PlacementParams,
    TickGate,
    decayed,
    whole,
)


class ThunderAgent(TickGate[PlacedSession]):
    """A gate that, every 5 s, pauses sessions of full replicas and resumes sessions that fit.

    The rules follow ThunderAgent-org/ThunderAgent @a7eef77a, ThunderAgent/scheduler/router.py.
    While any session is paused, a new session waits. While no session is paused, a new session goes
    to the replica with the fewest tokens among those with enough free memory. After ``forced_s``
    seconds, a waiting turn goes to its session's last replica, or to the replica with the fewest
    sessions.

    The tokens of a streaming answer are counted 20 at a time. ThunderAgent estimates prompt lengths
    from characters; fairbench uses exact lengths. A release call tells ThunderAgent that a session
    has ended. In fairbench, a real gateway remembers at most 10,000 idle sessions.
    """

    name = "thunderagent"

    @dataclass(frozen=True)
    class Params(PlacementParams):
        """``half_life_s`` is the half-life of idle sessions' tokens in the test for free memory.

        The policy tests for free memory before it resumes a paused session. With ``half_life_s`` 0
        (as published), tokens do not decay.
        """

        half_life_s: NotNegative = 0.0

    params: Params

    def make_session(self, number: int) -> PlacedSession:
        return PlacedSession(number)

    def weighed(self, now_s: float) -> Callable[[PlacedSession], float]:
        half_life_s = self.params.half_life_s
        return decayed(now_s, half_life_s) if half_life_s else whole

    def forced_worker(self, session: PlacedSession) -> int:
        loads = self.loads(whole)
        if session.origin is not None and session.origin in loads:
            return session.origin
        return min(loads, key=lambda worker: loads[worker].sessions)
