"""NVIDIA Dynamo's KV router: a worker's cost is the tokens that it would compute and hold."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import exp
from typing import ClassVar, Literal

from fairbench.core import Prompt, Request, Segment
from fairbench.schedulers.params import Fraction, NotNegative, PositiveInt
from fairbench.schedulers.routing.bases import CountingRouter, any_of, draw, lowest
from fairbench_rivals.routing.active_tree import ActiveNode, ActiveTree


class Dynamo(CountingRouter):
    """A router that chooses a worker with the lowest cost in KV blocks, and breaks ties randomly.

    Generation 2 of this router follows ai-dynamo/dynamo @07a6c9c,
    lib/kv-router/src/scheduling/selector/default.rs. The cost of a worker is ``prefill_scale`` x
    prefill blocks + blocks in use. Prefill blocks are the blocks that the worker still has to
    compute. A new request adds (its blocks - ``overlap_credit`` x its cached blocks) to the prefill
    blocks. Blocks in use are the distinct prompt blocks of the worker's requests and the new
    request. Output blocks add no cost (``router_track_output_blocks`` is off by default). Dynamo's
    router counts a request as waiting for prefill until the first token arrives. If a worker
    reports n waiting requests, fairbench assumes that the last n requests sent to the worker wait.
    KV events tell the router which prefixes are cached.

    Generation 1 (@00564be, kv_router/scheduler.rs) chooses the worker with the highest 2 x (cached
    fraction of the prompt) - KV usage - w, where w is the worker's number of waiting requests
    divided by the largest such number. The original router of generation 1 fails while no request
    waits; fairbench does not copy this defect. The router does not distinguish clients.
    """

    name = "dynamo"
    wants_evictions = True

    @dataclass(frozen=True)
    class Params:
        """Parameters: a ``temperature`` above 0 draws workers by softmax over normalised costs."""

        constants: ClassVar[tuple[str, ...]] = ("block_tokens", "overlap_credit", "prefill_scale")

        generation: Literal[1, 2] = 2
        overlap_credit: Fraction = 1.0
        prefill_scale: NotNegative = 1.0
        temperature: NotNegative = 0.0
        block_tokens: PositiveInt = 16

    def __init__(self, params: Params, workers: int) -> None:
        super().__init__(workers)
        self.params = params
        self._tree = ActiveTree()
        # tree node at which each request's prompt ends, by request id
        self._ends: dict[int, ActiveNode] = {}
        # uncached tokens of each worker's requests in flight, in the order of arrival
        self._uncached: defaultdict[int, dict[int, int]] = defaultdict(dict)

    def route(self, request: Request, now_s: float) -> int:
        found = self._tree.find(request.prompt)
        cached = self._tree.cached_tokens(found.node)
        costs = {
            w: self._cost(request, found.node, cached.get(w, 0), w)
            for w in self.in_flight_by_worker()
        }
        worker = self._pick(request, costs)
        end = self._ends[request.request_id] = self._tree.add(found, request.prompt, worker)
        self._tree.start_request(end, worker)
        uncached = request.input_tokens - cached.get(worker, 0)
        self._uncached[worker][request.request_id] = uncached
        self._fleet.dispatch(request, worker)
        return worker

    def _cost(self, request: Request, node: ActiveNode, cached: int, worker: int) -> float:
        params, block = self.params, self.params.block_tokens
        if params.generation == 1:
            most = max(self.queued_at(w) for w in self._fleet.workers)
            waiting = self.queued_at(worker) / most if most else 0
            overlap = cached // block * block / request.input_tokens
            return (self.usage(worker) or 0) + waiting - 2 * overlap
        queued = self.reported_load(worker).queued or 0
        uncached = list(self._uncached[worker].values())[-queued:] if queued else []
        prefill = (sum(uncached) + request.input_tokens) / block
        prefill = max(0, prefill - params.overlap_credit * (cached // block))
        shared = self._tree.shared_tokens(node, worker)
        in_use = self._tree.active_tokens[worker] + request.input_tokens - shared
        return params.prefill_scale * prefill + in_use / block

    def _pick(self, request: Request, costs: dict[int, float]) -> int:
        least, most = min(costs.values()), max(costs.values())
        if not self.params.temperature or least == most or self.params.generation == 1:
            return any_of(lowest(costs), request)
        scale = (most - least) * self.params.temperature
        odds = {worker: exp((least - cost) / scale) for worker, cost in costs.items()}
        left = draw(request.request_id) * sum(odds.values())
        for worker, odd in odds.items():
            left -= odd
            if left < 0:
                return worker
        return max(odds)

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        if self._fleet.end_request(request, worker):
            del self._uncached[worker][request.request_id]
            self._tree.stop_request(self._ends.pop(request.request_id), worker)

    def on_evict(self, prefix: Prompt, evicted_tokens: int, worker: int, now_s: float) -> None:
        self._tree.evict(prefix, evicted_tokens, worker)

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        super().on_worker_leave(worker, now_s)
        for request_id in self._uncached[worker]:
            self._tree.stop_request(self._ends.pop(request_id), worker)
        self._uncached[worker].clear()
        self._tree.purge(worker)
