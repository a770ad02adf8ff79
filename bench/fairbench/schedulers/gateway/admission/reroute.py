"""A router whose choice is corrected: a request that would be late goes to another worker."""

from __future__ import annotations

from collections.abc import Callable

from fairbench.core import Prompt, Request, Segment
from fairbench.schedulers.base import Router
from fairbench.schedulers.setup import Setup

Choice = Callable[[Request, int, float], int]
"""A function that returns the new worker of a request routed to a worker at a time."""


def rerouting(router: Router) -> Rerouting:
    """Wrap the router with a ``choose`` step, which initially changes nothing."""
    declared = {
        name: getattr(router, name)
        for name in ("name", "wants_evictions", "holds", "cluster_theorems")
    }
    made: Rerouting = type("Rerouting", (Rerouting,), declared)(router)
    return made


class Rerouting(Router):
    """A router with a ``choose`` step after its decision; made by ``rerouting``.

    The router does not learn that it was overruled, and counts its own decisions. If the request is
    routed again because its worker left, the router's first decision counts as failed.
    """

    def __init__(self, router: Router) -> None:
        self.router = router
        self.choose: Choice = lambda request, worker, now_s: worker
        self._routed: dict[Request, int] = {}  # the router's decision, if overruled

    def prepare(self, setup: Setup) -> None:
        self.setup = setup
        self.router.prepare(setup)

    def route(self, request: Request, now_s: float) -> int | None:
        voided = self._routed.pop(request, None)
        if voided is not None:
            self.router.on_failure(request, voided, now_s)
        worker = self.router.route(request, now_s)
        if worker is None:
            return None
        chosen = self.choose(request, worker, now_s)
        if chosen != worker:
            self._routed[request] = worker
        return chosen

    def on_first_token(self, request: Request, worker: int, at_s: float) -> None:
        self.router.on_first_token(request, self._routed.get(request, worker), at_s)

    @property
    def wants_gpu_time(self) -> bool:
        return self.router.wants_gpu_time

    def on_gpu_time(self, request: Request, worker: int, gpu_s: float) -> None:
        self.router.on_gpu_time(request, self._routed.get(request, worker), gpu_s)

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        self.router.on_finish(request, self._routed.pop(request, worker), output, now_s)

    def on_failure(self, request: Request, worker: int, now_s: float) -> None:
        self.router.on_failure(request, self._routed.pop(request, worker), now_s)

    def on_evict(self, prefix: Prompt, evicted_tokens: int, worker: int, now_s: float) -> None:
        self.router.on_evict(prefix, evicted_tokens, worker, now_s)

    def on_weights(self) -> None:
        self.router.on_weights()

    def balance(self, client: str) -> float | None:
        return self.router.balance(client)

    def on_worker_join(self, worker: int, now_s: float) -> None:
        self.router.on_worker_join(worker, now_s)

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        self.router.on_worker_leave(worker, now_s)
