"""The router that sends requests to the workers in rotation."""

from __future__ import annotations

from fairbench.core import Request
from fairbench.schedulers.params import NoParams
from fairbench.schedulers.routing.bases import FleetRouter


class RoundRobin(FleetRouter):
    """Round robin: the n-th request goes to worker n mod D, where D is the number of workers.

    SGLang uses round robin between data-parallel ranks by default.
    """

    name = "round-robin"
    Params = NoParams

    def __init__(self, params: NoParams, workers: int) -> None:
        super().__init__(workers)
        self._requests = 0

    def route(self, request: Request, now_s: float) -> int:
        workers = self._fleet.workers
        worker = workers[self._requests % len(workers)]
        self._requests += 1
        return worker
