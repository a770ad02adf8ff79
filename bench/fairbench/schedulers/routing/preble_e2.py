"""Preble's E2: exploit a prefix if it is most of the prompt, otherwise explore ([Preble] §3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from fairbench.core import Request, Segment
from fairbench.schedulers.base import Setup
from fairbench.schedulers.params import NotNegative, NotNegativeInt, Positive
from fairbench.schedulers.routing.bases import PrefixRouter
from fairbench.schedulers.routing.preble_costs import EvictionCost, LoadCost, Missed, missed_by
from fairbench.schedulers.routing.preble_load import TimeModel
from fairbench.schedulers.routing.preble_scaling import Autoscaler, key_portion, split_subtree
from fairbench.schedulers.routing.preble_tree import NOWHERE, PrebleNode, PrebleTree
from fairbench.schedulers.routing.preble_windows import Windows


class PrebleE2(PrefixRouter):
    """The router E2 as the Preble paper describes it ([Preble] Alg. 1 and 2, §3.2).

    With more tokens cached than missed, the request exploits: it goes to the GPU of lowest cost
    among those that hold its longest match. Otherwise the request explores: it goes to the GPU that
    mostly decodes, if one decodes far more than the others, or else to the GPU of lowest cost. Cost
    is L + M + P: load of the window, recomputation of tokens that would be evicted, and prefill of
    tokens missed there. Requests that would exploit the most loaded GPU go to the least loaded GPU
    while the loads (L) differ by more than the threshold. If the loads do not, and the waiting time
    of a prefix on its GPU keeps growing, the request moves the prefix to the lightest GPU that does
    not have it, with half of the load below. Ties rotate.
    """

    name = "preble-e2"
    _tree: PrebleTree

    @dataclass(frozen=True)
    class Params:
        """Parameters of E2.

        ``window_s`` is H. Each mechanism can be turned off separately: ``exploit`` and
        ``eviction_cost`` with false, the others with inf, because each has a threshold.

        ``rebalance_threshold`` is Th_bal (1.5 in Preble's code). ``autoscale_factor`` is the growth
        of queueing within H from which on a prefix is replicated ("doubles": 2).
        ``imbalance_ratio`` is IMBALR, the threshold for a GPU's ratio of decoding to prefill time,
        relative to that of all GPUs ([gaps] D2).

        ``capacity_tokens`` is a worker's KV pool, with which M is computed; 0 means the host's
        value (``Setup.pool_tokens``), and M is 0 without one. The router knows which prompts a
        worker holds, not which outputs, so it sees a pool as full somewhat late.
        ``default_output_tokens`` replaces the mean output until a request has finished on the GPU.
        The prefill times are Preble's for Mistral 7B on an A100: linear from
        ``prefill_linear_from_tokens`` on, below that ``prefill_short_ms``, and ``prefill_tiny_ms``
        under 64 tokens. ``decode_ms_per_token`` is the time of an 8B model on an A100, with one
        request at a time.
        """

        window_s: Positive = 180.0
        exploit: bool = True
        rebalance_threshold: Annotated[float, Ge(1)] = 1.5
        autoscale_factor: Annotated[float, Gt(1)] = 2.0
        imbalance_ratio: Annotated[float, Ge(1)] = 1.5
        eviction_cost: bool = True
        capacity_tokens: NotNegativeInt = 0
        default_output_tokens: NotNegative = 45.0
        prefill_ms_per_token: NotNegative = 0.05031337
        prefill_base_ms: NotNegative = 5.506
        prefill_linear_from_tokens: NotNegativeInt = 256
        prefill_short_ms: NotNegative = 10.5
        prefill_tiny_ms: NotNegative = 8.96
        decode_ms_per_token: NotNegative = 12.5

    def __init__(self, params: Params, workers: int) -> None:
        self.params = params
        self._times = TimeModel.of(params, params.decode_ms_per_token)
        super().__init__(workers)
        self._tree = PrebleTree()
        self._evictions = EvictionCost(self._tree, self._times, params.capacity_tokens)
        self._scaler = Autoscaler(params.autoscale_factor, params.window_s, self._times)
        self._windows = Windows(params.window_s, self._times, params.default_output_tokens)
        for worker in self._fleet.workers:
            self._windows.join(worker)
        evictions = self._evictions if params.eviction_cost else None
        self._cost = LoadCost(self._windows, self._times, self._tree, evictions)

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self._evictions.capacity_tokens = self.params.capacity_tokens or setup.pool_tokens

    def route(self, request: Request, now_s: float) -> int:
        for expired, end in self._windows.expire(now_s):
            self._tree.forget(end, expired)
        found = self._tree.find(request.prompt)
        missed = missed_by(self._fleet.everyone, request.input_tokens, self._tree, found.node)
        worker = self._choose(request, found.node, missed, now_s)
        end = self._tree.add(found, request.prompt, worker)
        tokens = next(tokens for tokens, workers in missed if workers >> worker & 1)
        prefill_us = self._times.prefill_us(tokens)
        self._windows.assign(worker, now_s, prefill_us, end)
        self._scaler.sent(request, worker, end, prefill_us, now_s)
        self._fleet.dispatch(request, worker)
        return worker

    def _choose(
        self, request: Request, node: PrebleNode, missed: list[Missed], now_s: float
    ) -> int:
        """Run Algorithm 1, then the post-assignment adjustment ([Preble] §3.2)."""
        loads, everyone = self._windows.loads, self._fleet.everyone
        longest, holders = self._tree.holders(node)
        if not self.params.exploit or request.input_tokens - longest >= longest:
            mostly_decoding = self._windows.decode_heavy(self.params.imbalance_ratio)
            return self._cheapest(mostly_decoding or everyone, missed, node)
        home = self._tree.home(node)
        chosen = home if home != NOWHERE else self._cheapest(holders & everyone, missed, node)
        heaviest, lightest = loads.heaviest_us, loads.lightest_us
        if loads[chosen] == heaviest and heaviest / self.params.rebalance_threshold > lightest:
            return self._fleet.in_turn(loads.lightest(everyone))
        if self._scaler.overloaded(key := key_portion(node), chosen, now_s):
            return self._replicate(key, chosen)
        return chosen

    def _replicate(self, key: PrebleNode, worker: int) -> int:
        """Return the lightest GPU without the prefix as its second GPU, else ``worker``."""
        without = self._fleet.everyone & ~key.workers
        if not without:
            return worker
        to = self._fleet.in_turn(self._windows.loads.lightest(without))
        split_subtree(key, self._windows[worker], to, self._tree)
        key.waits.pop(worker)  # the waiting time has to double again, now with less to serve
        return to

    def _cheapest(self, among: int, missed: list[Missed], node: PrebleNode) -> int:
        return self._fleet.in_turn(self._cost.cheapest(among, missed, node))

    def on_first_token(self, request: Request, worker: int, at_s: float) -> None:
        self._scaler.began(request, worker, at_s)

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        self._scaler.finished(request)
        # A refused request (0 tokens) gives no information about output lengths.
        if self._fleet.finish(request, worker) and output.length:
            self._windows.finish(worker, now_s, output.length)

    def on_worker_join(self, worker: int, now_s: float) -> None:
        super().on_worker_join(worker, now_s)
        self._windows.join(worker)

    def left(self, worker: int) -> None:
        self._windows.leave(worker)
