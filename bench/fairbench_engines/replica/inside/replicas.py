"""The clock, the token ids and the replicas of a run, which the bridges of both engines use."""

from __future__ import annotations

from typing import Any

from fairbench_engines.replica.inside.token_ids import TokenIds
from fairbench_engines.replica.inside.virtual_time import VirtualTime

OPERATIONS = ("open", "add", "turn", "complete", "produced")
"""The operations of a simulation, which are methods of a bridge."""


class EngineReplicas:
    """The replicas of one simulation; an engine's bridge adds the methods ``open`` and ``add``."""

    def __init__(self, engine: str) -> None:
        self._clock = VirtualTime()
        self._clock.install(engine)
        self._tokens = TokenIds()
        self._workers: list[Any] = []

    def turn(self, worker: int, now_ps: int, requests: list[Any], whole: bool) -> dict[str, Any]:
        """Let requests arrive at a replica, and plan its next batch."""
        self._clock.set(now_ps)
        one = self._workers[worker]
        for request in requests:
            one.submit(*request)
        plan: dict[str, Any] = one.turn(whole=whole)
        return plan

    def complete(self, worker: int, now_ps: int) -> dict[str, Any]:
        """Let the batch of a replica end."""
        self._clock.set(now_ps)
        ended: dict[str, Any] = self._workers[worker].complete()
        return ended

    def produced(self, worker: int) -> list[tuple[int, int]]:
        """Return the output tokens of a replica's unfinished requests."""
        unfinished: list[tuple[int, int]] = self._workers[worker].produced()
        return unfinished
