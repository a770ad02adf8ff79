"""MemServe's policy according to [Preble] §E: the longest cached prefix, whatever the load."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.core import Request
from fairbench.schedulers.location_tree import LocationNode, LocationTree
from fairbench.schedulers.params import NotNegativeInt
from fairbench.schedulers.routing.bases import PrefixRouter


class MemServe(PrefixRouter):
    """A router that picks the worker with the longest cached prefix, whatever the load.

    The Preble paper describes MemServe's router only as "longest-prefix-match regardless of the
    existing load". Among workers with an equally long match, the worker with the fewest unfinished
    requests is picked. Workers with equally few requests take turns.
    """

    name = "memserve"

    @dataclass(frozen=True)
    class Params:
        """Parameters. A match of fewer than ``min_match_tokens`` tokens does not count.

        If ``min_match_tokens`` is 0, as in the paper, prompts with the same first token, such as
        that of a system prompt, go to one worker.
        """

        min_match_tokens: NotNegativeInt = 0

    def __init__(self, params: Params, workers: int) -> None:
        super().__init__(workers)
        self._least = params.min_match_tokens
        self._tree = LocationTree(LocationNode)

    def route(self, request: Request, now_s: float) -> int:
        found = self._tree.find(request.prompt)
        matched, holders = self._tree.holders(found.node)
        if matched < self._least:
            holders = 0
        everyone = self._fleet.everyone
        worker = self._fleet.least_loaded(holders & everyone or everyone)
        self._tree.add(found, request.prompt, worker)
        self._fleet.dispatch(request, worker)
        return worker
