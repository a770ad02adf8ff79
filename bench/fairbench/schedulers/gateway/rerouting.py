"""A router whose choice of a worker can be changed by admission control or a gateway policy."""

from __future__ import annotations

from collections.abc import Callable

from fairbench.core import Prompt, Request, Segment
from fairbench.schedulers.base import Router, Setup
from fairbench.schedulers.gateway.policy import FlowPolicy
from fairbench.schedulers.gateway.registry import AdmissionParams, policy_class

Choice = Callable[[Request, int, float], int]
"""A function that returns a request's final worker, given the router's choice and the time (s)."""


def is_overruled(gateway: str | None, admission: AdmissionParams | None) -> bool:
    """Return whether a gateway policy or admission control may change a router's choices.

    Raises UsageError for an unknown gateway policy.
    """
    if admission is not None and admission.is_on:
        return True
    if gateway is None:
        return False
    policy = policy_class(gateway)
    return issubclass(policy, FlowPolicy) and policy.place is not None


def rerouting(router: Router) -> Rerouting:
    """Wrap a router so that ``choose`` can change its choices; by default, no choice is changed."""
    declared = {
        name: getattr(router, name)
        for name in ("name", "wants_evictions", "holds", "cluster_theorems")
    }
    made: Rerouting = type("Rerouting", (Rerouting,), declared)(router)
    return made


class Rerouting(Router):
    """A router that lets a function ``choose`` change the inner router's choice of a worker.

    If ``choose`` takes another worker, the inner router still counts the request at its own choice.
    If a request is routed again because its worker left, the inner router's earlier choice counts
    as failed.
    """

    def __init__(self, router: Router) -> None:
        self.router = router
        self.choose: Choice = lambda request, worker, now_s: worker
        # If ``choose`` moves a request to another worker, ``_routed`` stores the worker that the
        # inner router chose.
        self._routed: dict[Request, int] = {}
        self.order = router.order

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

    def redirect(self, request: Request, routed: int, chosen: int) -> None:
        """Record that a request is sent to ``chosen`` instead of the router's choice ``routed``."""
        if chosen != routed:
            self._routed.setdefault(request, routed)

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
