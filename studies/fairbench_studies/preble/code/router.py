"""Preble's router E2 in the published form ([Preble code]); the code differs from the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from annotated_types import Ge, Gt
from pydantic import FiniteFloat

from fairbench.core import Request, Segment
from fairbench.schedulers.parts.preble_costs import key_portion
from fairbench.schedulers.parts.preble_tree import PrebleNode, WaitWindow
from fairbench.schedulers.parts.preble_windows import TimeModel
from fairbench.schedulers.routing.bases import PrefixRouter
from fairbench_studies.preble.code.balance import CodeBalance
from fairbench_studies.preble.code.load import CodeGpu, CodeLoad
from fairbench_studies.preble.code.tree import CodeTree


class _Sent(NamedTuple):
    """An unfinished request: the prompt's last tree node, the GPU, and the time of dispatch."""

    end: PrebleNode
    worker: int
    at_s: float


class PrebleE2Code(PrefixRouter):
    """The router E2 of the published code, which *allocates* GPUs to nodes of the prefix tree.

    The router compares a request's leaf with the path above the leaf. If the leaf has fewer tokens
    than this path, the request goes to a GPU that is allocated to the deepest matched node. A
    request whose leaf is at least as long as this path goes to the GPU with the highest hit ratio,
    or to the least loaded GPU if all hit ratios are below ``hit_ratio``.

    The load of a GPU is the sum over its key nodes (nodes of the prefix tree; see ``CodeBalance``).
    A key node adds the prefill time of its uncached tokens, divided by the number of GPUs that hold
    the node, and the decoding time of its unfinished requests. If the loads of the GPUs differ too
    much, the cheapest key nodes move from the most to the least loaded GPU. If a GPU has a single
    key node, the node is copied to another GPU once the TTFT of its requests has doubled.

    This class differs from Preble's code in three ways. Preble's code returns a GPU's position in a
    list of candidates instead of the GPU's number. Prefill times do not include attention. GPUs
    with equal values take turns; Preble's code chooses the lowest index.
    """

    name = "preble-e2-code"
    _tree: CodeTree

    @dataclass(frozen=True)
    class Params:
        """Parameters with the defaults of Preble's code. A threshold of inf is never exceeded.

        A key node is moved only after ``rebalance_after`` requests per GPU, and only if the node
        has ``rebalance_min_hits`` requests in the window. A request whose leaf is at least
        ``rebalance_max_chain`` levels below its key node does not trigger a move. A GPU receives
        mostly new prompts only if its hit ratio over ``hit_ratio_window_s`` seconds is at least
        ``hit_ratio``. ``first_tpot_s`` is the assumed time per output token (s) before the first
        observation. Prefill times have the same parameters as in ``preble-e2``.
        """

        window_s: Annotated[FiniteFloat, Gt(0)] = 180.0
        rebalance_threshold: Annotated[float, Ge(1)] = 1.5
        rebalance_after: Annotated[int, Ge(0)] = 50
        rebalance_min_hits: Annotated[int, Ge(1)] = 2
        rebalance_max_chain: Annotated[int, Ge(1)] = 3
        autoscale_factor: Annotated[float, Gt(1)] = 2.0
        hit_ratio: Annotated[float, Gt(0)] = 0.7
        hit_ratio_window_s: Annotated[FiniteFloat, Gt(0)] = 30.0
        eviction_cost: bool = True
        first_tpot_s: Annotated[FiniteFloat, Gt(0)] = 0.15
        prefill_ms_per_token: Annotated[FiniteFloat, Ge(0)] = 0.05031337
        prefill_base_ms: Annotated[FiniteFloat, Ge(0)] = 5.506
        prefill_linear_from_tokens: Annotated[int, Ge(0)] = 256
        prefill_short_ms: Annotated[FiniteFloat, Ge(0)] = 10.5
        prefill_tiny_ms: Annotated[FiniteFloat, Ge(0)] = 8.96

    def __init__(self, params: Params, workers: int) -> None:
        self.params = params
        self._times = TimeModel.of_params(params, 0)
        super().__init__(workers)
        self._tree = CodeTree()
        self._requests = 0
        self._sent: dict[int, _Sent] = {}
        self._began: dict[int, float] = {}
        self._gpus = {worker: self._gpu() for worker in self._fleet.workers}
        self._load = CodeLoad(self._tree, self._times, self._gpus)
        self._balance = CodeBalance(params, self._load)

    def _gpu(self) -> CodeGpu:
        params = self.params
        return CodeGpu(params.window_s, params.hit_ratio_window_s, params.first_tpot_s, self._times)

    def route(self, request: Request, now_s: float) -> int:
        self._expire(now_s)
        found = self._tree.find(request.prompt)
        own = request.input_tokens - found.node.depth or found.node.length
        context = request.input_tokens - own
        worker = self._choose(found.node, own, context)
        gpu = self._gpus[worker]
        gpu.hit(now_s, self._tree.cached_tokens(found.node).get(worker, 0), request.input_tokens)
        end = self._tree.add(found, request.prompt, worker)
        gpu.window.assign(now_s, 0, end)
        self._tree.allocate(end, worker)
        self._tree.begin(end, worker)
        self._tree.count(now_s, end, context, request.input_tokens, request.max_new_tokens)
        self._sent[request.request_id] = _Sent(end, worker, now_s)
        self._fleet.dispatch(request, worker)
        self._requests += 1
        self._balance.rebalance(end, self._requests, now_s)
        return worker

    def _expire(self, now_s: float) -> None:
        for worker, gpu in self._gpus.items():
            for end in gpu.window.expire(now_s):
                self._tree.forget(end, worker)
            gpu.expire(now_s)
        self._tree.expire(now_s - self.params.window_s)

    def _choose(self, node: PrebleNode, own: int, context: int) -> int:
        candidates = self._fleet.workers
        if own < context:
            allocated = self._tree.allocation(node)
            candidates = [w for w in candidates if allocated >> w & 1] or candidates
        else:
            ratios = {worker: gpu.hit_ratio for worker, gpu in self._gpus.items()}
            if max(ratios.values()) >= self.params.hit_ratio:
                return self._fleet.cheapest({worker: -ratio for worker, ratio in ratios.items()})
        if len(candidates) == 1:
            return candidates[0]
        loads = self._load.of_gpus(min_hits=1)
        costs = {worker: loads[worker] for worker in candidates}
        if self.params.eviction_cost:
            for worker in candidates:
                costs[worker] += self._load.eviction_s(worker, own)
        return self._fleet.cheapest(costs)

    def on_first_token(self, request: Request, worker: int, at_s: float) -> None:
        sent = self._sent.get(request.request_id)
        if sent is not None and sent.worker == worker:
            waits = key_portion(sent.end).waits
            waits.setdefault(worker, WaitWindow(self.params.window_s)).add(at_s, at_s - sent.at_s)
            self._began[request.request_id] = at_s

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        began_s = self._began.pop(request.request_id, None)
        if not self._fleet.end_request(request, worker):
            return
        self._tree.over(self._sent.pop(request.request_id).end, worker)
        if began_s is not None and output.length > 1 and now_s > began_s:
            self._gpus[worker].decoded((now_s - began_s) / (output.length - 1))

    def on_worker_join(self, worker: int, now_s: float) -> None:
        super().on_worker_join(worker, now_s)
        self._gpus[worker] = self._gpu()

    def on_worker_left(self, worker: int) -> None:
        self._sent = {r: sent for r, sent in self._sent.items() if sent.worker != worker}
        del self._gpus[worker]
