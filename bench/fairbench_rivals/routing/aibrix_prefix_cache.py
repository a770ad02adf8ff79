"""AIBrix's prefix-cache routing: the longest cached prefix among workers that are not too busy."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import ClassVar

from fairbench.core import Request
from fairbench.schedulers.params import NotNegative, NotNegativeInt
from fairbench.schedulers.routing.bases import any_of, draw, lowest
from fairbench_rivals.routing.history_tree import HistoryRouter

KEEP = 0.95  # A full index is cut to this fraction of the index's size limit.


class AibrixPrefixCache(HistoryRouter):
    """A router to the worker with the longest cached prefix, among workers that are not too busy.

    The rules follow vllm-project/aibrix @e3e10f9, pkg/plugins/gateway/algorithms/prefix_cache.go.
    The router chooses the worker whose cached prefix covers the highest percentage of the prompt.
    Workers with more requests in flight than the mean plus ``deviations`` standard deviations are
    excluded. If the workers' requests in flight differ by more than ``imbalance``, only the workers
    with the fewest requests are considered. Ties go to the worker with the fewest requests in
    flight, and are then broken at random. If all workers with a match are excluded, the router
    picks at random among the workers with the fewest requests. A single LRU index holds the prompts
    that were sent to any worker. In AIBrix, index entries also expire after 20 minutes, which
    fairbench does not model. The router does not distinguish clients.

    fairbench keeps two known defects of AIBrix's router. With ``whole_percents``, a match is
    rounded down to a whole percentage, so 214 matching tokens of 21,449 count as no match. The
    cluster's index holds only 200,000 blocks of 4 characters (about 200,000 tokens), about half of
    one worker's KV pool. ``index_tokens`` limits the tokens in the index; 0 means no limit.
    """

    name = "aibrix-prefix-cache"

    @dataclass(frozen=True)
    class Params:
        """Parameters of the router's rules, which class ``AibrixPrefixCache`` explains."""

        constants: ClassVar[tuple[str, ...]] = ("deviations", "imbalance")

        imbalance: NotNegativeInt = 8
        deviations: NotNegative = 1.0
        index_tokens: NotNegativeInt = 200_000
        whole_percents: bool = True

    def __init__(self, params: Params, workers: int) -> None:
        super().__init__(workers)
        self.params = params

    def route(self, request: Request, now_s: float) -> int:
        loads = self.in_flight_by_worker()
        found = self._tree.find(request.prompt)
        held = self._tree.cached_tokens(found.node)
        worker = self._matched(request, held, loads)
        if worker is None:
            worker = any_of(lowest({w: float(n) for w, n in loads.items()}), request)
        self._tree.add(found, request.prompt, worker)
        limit = self.params.index_tokens
        if limit and self._tree.stored > limit:
            self._tree.shrink_all(int(KEEP * limit))
        self._fleet.dispatch(request, worker)
        return worker

    def _matched(self, request: Request, held: dict[int, int], loads: dict[int, int]) -> int | None:
        fewest = min(loads.values())
        balanced = max(loads.values()) - fewest <= self.params.imbalance
        limit = fmean(loads.values()) + self.params.deviations * pstdev(loads.values())
        length, whole = request.input_tokens, self.params.whole_percents
        fits = {
            worker: tokens * 100 // length if whole else tokens / length
            for worker, tokens in held.items()
            if loads[worker] <= limit and (balanced or loads[worker] == fewest)
        }
        if not fits:
            return None
        order = {w: (-fits[w], loads[w], draw(request.request_id, w)) for w in fits}
        return min(order, key=lambda w: order[w])
