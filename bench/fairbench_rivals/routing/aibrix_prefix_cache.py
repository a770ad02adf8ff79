"""AIBrix's prefix-cache routing: the longest cached prefix among workers that are not too busy."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import ClassVar

from fairbench.core import Request
from fairbench.schedulers.params import NotNegative, NotNegativeInt
from fairbench.schedulers.routing.bases import any_of, draw, lowest
from fairbench_rivals.routing.history_tree import HistoryRouter

KEEP = 0.95  # fraction of its size to which a full index is cut


class AibrixPrefixCache(HistoryRouter):
    """A router that follows the longest match among workers with at most an average load.

    The rules follow vllm-project/aibrix @e3e10f9,
    pkg/plugins/gateway/algorithms/prefix_cache.go. The worker with the highest matched percentage
    of the prompt wins, among workers whose requests in flight are at most the mean plus
    ``deviations`` standard deviations. If the workers' requests in flight differ by more than
    ``imbalance``, only the workers with the fewest requests are matched. Among equal percentages,
    the worker with the fewest requests in flight wins, and then chance decides. Without a match, or
    if all matching workers are too busy, a random worker among the workers with the fewest requests
    is chosen. A single LRU index holds the prompts that were sent to any worker. In AIBrix, the
    index also expires after 20 minutes, which is not modelled. Clients are not distinguished.

    fairbench keeps two known defects of AIBrix's router. The match is rounded to a whole
    percentage, so a match of up to 214 of 21,449 tokens looks like no match (``whole_percents``).
    The index of the whole cluster holds 200,000 blocks of 4 characters, about half the tokens of a
    worker's pool (``index_tokens``; with 0, the index never forgets).
    """

    name = "aibrix-prefix-cache"

    @dataclass(frozen=True)
    class Params:
        """Parameters of the load limit, the index and the match, as ``AibrixPrefixCache`` says."""

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
