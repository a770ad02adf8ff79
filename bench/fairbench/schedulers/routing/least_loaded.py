"""The worker with the fewest requests in flight."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.core import Request, Segment
from fairbench.schedulers.base import Router
from fairbench.schedulers.routing.fleet import Fleet


class LeastLoaded(Router):
    """The worker with the fewest requests in flight, ties in rotation.

    Ignores clients and prefixes.
    """

    name = "least-loaded"

    @dataclass(frozen=True)
    class Params:
        """None."""

    def __init__(self, params: Params, workers: int) -> None:
        self._fleet = Fleet(workers)

    def route(self, request: Request, now_s: float) -> int:
        worker = self._fleet.least_loaded(self._fleet.everyone)
        self._fleet.dispatch(request, worker)
        return worker

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        self._fleet.finish(request, worker)

    def on_worker_join(self, worker: int, now_s: float) -> None:
        self._fleet.join(worker)

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        self._fleet.leave(worker)
