"""The simulated workers as a router or a gateway sees them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fairbench.core import Request
from fairbench.schedulers.views import WorkerLoad
from fairbench.sim.engine.replica import Replica


class SimFleet:
    """A FleetView without delay; a real fleet is seen with delay."""

    def __init__(self, workers: Sequence[Replica]) -> None:
        self._workers = workers

    def workers(self) -> Collection[int]:
        return range(len(self._workers))

    def load(self, worker: int) -> WorkerLoad:
        one = self._workers[worker]
        one.sync()
        queued, running, cache = one.queued_count, one.running_count, one.cache
        tokens = cache.capacity - cache.free - cache.evictable
        return WorkerLoad(queued + running, tokens, queued, running, one.saturated)

    def matched_tokens(self, request: Request) -> int:
        """Return the largest number of the request's prompt tokens cached at any worker now."""
        limit = request.input_tokens - 1
        return max(one.cache.common_tokens(request.prompt, limit) for one in self._workers)
