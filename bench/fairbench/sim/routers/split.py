"""Several routers, to a simulated cluster one: each hears of its own requests, all of the news."""

from __future__ import annotations

from collections.abc import Sequence

from fairbench.core import Prompt, Request, Segment
from fairbench.schedulers.base import Router
from fairbench.schedulers.setup import Setup


def split(routers: Sequence[Router]) -> SplitRouter:
    """Return several routers of one kind, combined into a single router."""
    declared = {
        name: getattr(routers[0], name)
        for name in ("name", "wants_evictions", "holds", "cluster_theorems")
    }
    made: SplitRouter = type("SplitRouter", (SplitRouter,), declared)(routers)
    return made


class SplitRouter(Router):
    """Made by ``split``. Whoever lets a request in says whose it is (``owners``)."""

    def __init__(self, routers: Sequence[Router]) -> None:
        self.routers = routers
        self.owners: dict[Request, int] = {}  # of what is under way

    def prepare(self, setup: Setup) -> None:
        self.setup = setup
        for router in self.routers:
            router.prepare(setup)

    def route(self, request: Request, now_s: float) -> int | None:
        return self._owner(request).route(request, now_s)

    def on_first_token(self, request: Request, worker: int, at_s: float) -> None:
        self._owner(request).on_first_token(request, worker, at_s)

    @property
    def wants_gpu_time(self) -> bool:
        return any(router.wants_gpu_time for router in self.routers)

    def on_gpu_time(self, request: Request, worker: int, gpu_s: float) -> None:
        self._owner(request).on_gpu_time(request, worker, gpu_s)

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        self.routers[self.owners.pop(request)].on_finish(request, worker, output, now_s)

    def on_evict(self, prefix: Prompt, evicted_tokens: int, worker: int, now_s: float) -> None:
        for router in self.routers:
            router.on_evict(prefix, evicted_tokens, worker, now_s)

    def _owner(self, request: Request) -> Router:
        return self.routers[self.owners[request]]
