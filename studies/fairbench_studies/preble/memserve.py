"""The longest cached prefix regardless of load: MemServe's policy as in [Preble] §E."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.core import Request
from fairbench.schedulers.location_tree import LocationNode, LocationTree
from fairbench.schedulers.routing.bases import PrefixRouter


class MemServe(PrefixRouter):
    """Longest matched prefix first; ties and no match go to the least loaded worker.

    [Preble] only says "longest-prefix-match regardless of the existing load". Load is the number of
    requests in flight, and ties rotate.
    """

    name = "memserve"

    @dataclass(frozen=True)
    class Params:
        """None."""

    def __init__(self, params: Params, workers: int) -> None:
        super().__init__(workers)
        self._tree = LocationTree(LocationNode)

    def route(self, request: Request, now_s: float) -> int:
        found = self._tree.find(request.prompt)
        _, holders = self._tree.holders(found.node)
        everyone = self._fleet.everyone
        worker = self._fleet.least_loaded(holders & everyone or everyone)
        self._tree.add(found, request.prompt, worker)
        self._fleet.dispatch(request, worker)
        return worker
