"""A router that follows Ray Serve's PrefixCacheAffinityRouter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from fairbench.core import Request
from fairbench.schedulers.params import Fraction, Positive, PositiveInt
from fairbench.schedulers.routing.bases import lowest, two_of
from fairbench_rivals.routing.history_tree import HistoryRouter

CHARS_PER_TOKEN = 4


class RayPrefix(HistoryRouter):
    """A router that prefers the worker with the longest prefix while the queues are balanced.

    The rules follow ray-project/ray @1eec25d, ray/llm/_internal/serve/request_router/prefix_aware.
    Queues are balanced if the workers' requests in flight differ by at most
    ``imbalanced_threshold``. While queues are balanced, the candidates are the workers to which the
    longest prefix was sent. If no prefix reaches the fraction ``match_rate_threshold`` of the
    prompt, the candidates are the workers with the smallest trees. While queues are imbalanced, the
    candidates are two random workers. The router chooses the candidate worker with the fewest
    requests in flight. The router does not distinguish clients.

    As in Ray, a worker's prefix tree grows without limit by default. With ``do_eviction``, a tree
    of more than ``eviction_threshold`` characters is cut to ``eviction_target`` characters.
    """

    name = "ray-prefix"

    @dataclass(frozen=True)
    class Params:
        """Parameters with Ray's names and defaults; lengths are in characters.

        If ``imbalanced_threshold`` is inf, queues always count as balanced.
        """

        constants: ClassVar[tuple[str, ...]] = (
            *(
                "eviction_interval_s",
                "eviction_target",
                "eviction_threshold",
                "match_rate_threshold",
            ),
        )

        imbalanced_threshold: Annotated[float, Ge(0)] = 10
        match_rate_threshold: Fraction = 0.1
        do_eviction: bool = False
        eviction_threshold: PositiveInt = 400_000
        eviction_target: PositiveInt = 360_000
        eviction_interval_s: Positive = 10.0

    def __init__(self, params: Params, workers: int) -> None:
        super().__init__(workers)
        self.params = params
        self._sweep_s = params.eviction_interval_s

    def route(self, request: Request, now_s: float) -> int:
        self._sweep(now_s)
        loads = self.in_flight_by_worker()
        found = self._tree.find(request.prompt)
        candidates = list(two_of(self._fleet.workers, request))
        if max(loads.values()) - min(loads.values()) <= self.params.imbalanced_threshold:
            held = self._tree.cached_tokens(found.node)
            longest = max(held.values(), default=0)
            if longest < self.params.match_rate_threshold * request.input_tokens:
                candidates = lowest({w: float(self._tree.tokens[w]) for w in loads})
            elif longest:
                candidates = [w for w, tokens in held.items() if tokens == longest]
        worker = min(candidates, key=lambda w: loads[w])
        self._tree.add(found, request.prompt, worker)
        self._fleet.dispatch(request, worker)
        return worker

    def _sweep(self, now_s: float) -> None:
        if not self.params.do_eviction or now_s < self._sweep_s:
            return
        every = self.params.eviction_interval_s
        self._sweep_s = (now_s // every + 1) * every
        for worker in self._fleet.workers:
            if self._tree.tokens[worker] * CHARS_PER_TOKEN > self.params.eviction_threshold:
                self._tree.shrink(worker, self.params.eviction_target // CHARS_PER_TOKEN)
