"""The router that prefers the worker with the fewest requests in flight."""

from __future__ import annotations

from fairbench.core import Request
from fairbench.schedulers.params import NoParams
from fairbench.schedulers.routing.bases import FleetRouter


class LeastLoaded(FleetRouter):
    """A router that chooses the worker with the fewest requests in flight; ties rotate.

    The router ignores clients and cached prefixes.
    """

    name = "least-loaded"
    Params = NoParams

    def __init__(self, params: NoParams, workers: int) -> None:
        super().__init__(workers)

    def route(self, request: Request, now_s: float) -> int:
        worker = self._fleet.least_loaded(self._fleet.everyone)
        self._fleet.dispatch(request, worker)
        return worker
