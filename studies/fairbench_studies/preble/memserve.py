"""The longest cached prefix regardless of load: MemServe's policy as in [Preble] §E."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.core import Prompt, Request, Segment
from fairbench.schedulers.base import Router
from fairbench.schedulers.location_tree import LocationNode, LocationTree
from fairbench.schedulers.routing.fleet import Fleet


class MemServe(Router):
    """The longest matched prefix; ties and prompts without a match go to the least loaded worker.

    [Preble] says no more than "longest-prefix-match regardless of the existing load". Load is
    requests in flight, and ties of those rotate.
    """

    name = "memserve"
    wants_evictions = True

    @dataclass(frozen=True)
    class Params:
        """None."""

    def __init__(self, params: Params, workers: int) -> None:
        self._fleet = Fleet(workers)
        self._tree = LocationTree(LocationNode)

    def route(self, request: Request, now_s: float) -> int:
        found = self._tree.find(request.prompt)
        _, holders = self._tree.holders(found.node)
        everyone = self._fleet.everyone
        worker = self._fleet.least_loaded(holders & everyone or everyone)
        self._tree.add(found, request.prompt, worker)
        self._fleet.dispatch(request, worker)
        return worker

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        self._fleet.finish(request, worker)

    def on_evict(self, prefix: Prompt, evicted_tokens: int, worker: int, now_s: float) -> None:
        self._tree.evict(prefix, evicted_tokens, worker)

    def on_worker_join(self, worker: int, now_s: float) -> None:
        self.on_worker_leave(worker, now_s)
        self._fleet.join(worker)

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        if worker in self._fleet:
            self._fleet.leave(worker)
            self._tree.purge(worker)
