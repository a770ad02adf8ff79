"""Preble's router E2, which exploits cached prefixes or explores other GPUs ([Preble] §3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt

from fairbench.core import Request, Segment
from fairbench.schedulers.base import Setup
from fairbench.schedulers.params import NotNegative, NotNegativeInt, Positive
from fairbench.schedulers.parts.preble_costs import Autoscaler, EvictionCost, LoadCost, PromptMatch
from fairbench.schedulers.parts.preble_tree import NOWHERE, PrebleTree
from fairbench.schedulers.parts.preble_windows import TimeModel, Windows
from fairbench.schedulers.routing.bases import PrefixRouter


class PrebleE2(PrefixRouter):
    """The router E2 as the Preble paper describes it ([Preble] Alg. 1 and 2, §3.2).

    A request with more cached than uncached tokens exploits the cache: it goes to the cheapest GPU
    that has the longest cached prefix of the request. A request with no more cached than uncached
    tokens explores: it goes to a GPU above ``imbalance_ratio`` or, if there is none, to the
    cheapest. A GPU's cost is the sum of its load in the window (L), the recomputation of evicted
    tokens (M) and the prefill of uncached tokens (P). If the GPU with the longest cached prefix is
    the most loaded GPU, with more than ``rebalance_threshold`` times the lowest load, the request
    goes to the least loaded GPU. If the queueing time of a prefix on a GPU keeps growing, the
    prefix is copied: the next request with this prefix goes to the least loaded GPU without the
    prefix. The copy of a prefix takes over half of the load of the prompts that extend this prefix.
    Ties rotate.
    """

    name = "preble-e2"
    _tree: PrebleTree

    @dataclass(frozen=True)
    class Params:
        """Parameters of E2.

        ``window_s`` is the length of the load window in seconds (H in the paper). A rule with an
        infinite threshold is off, and ``eviction_cost=false`` leaves out the eviction cost M.
        ``rebalance_threshold`` is Th_bal in the paper (1.5 in Preble's code). ``autoscale_factor``
        is the factor by which the queueing time must grow within the window before a prefix is
        copied; the paper uses 2. A GPU decodes unusually much if its ratio of decoding to prefill
        time is above ``imbalance_ratio`` (the paper's IMBALR) times the ratio of all GPUs together
        ([gaps] D2).

        ``capacity_tokens`` is the size of a worker's KV pool in tokens, which determines the
        eviction cost M. If ``capacity_tokens`` is 0, ``Setup.pool_tokens`` is used; if both are 0,
        eviction is free. KV pools fill up earlier than the router assumes, because output tokens
        are not counted. ``default_output_tokens`` is the assumed mean output length on a GPU before
        its first request has finished. The default prefill times are Preble's values for Mistral 7B
        on an A100. A prompt of fewer than ``prefill_linear_from_tokens`` tokens takes
        ``prefill_short_ms``, and a prompt of fewer than 64 tokens takes ``prefill_tiny_ms``.
        ``decode_ms_per_token`` is the time per output token of an 8B model on an A100 that runs one
        request.
        """

        constants: ClassVar[tuple[str, ...]] = ("default_output_tokens", "exploit")

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
        self._times = TimeModel.of_params(params, params.decode_ms_per_token)
        super().__init__(workers)
        self._tree = PrebleTree()
        self._evictions = EvictionCost(self._tree, self._times, params.capacity_tokens)
        self._scaler = Autoscaler(params.autoscale_factor, params.window_s, self._times)
        outputs, evictions = params.default_output_tokens, self._evictions
        self._windows = Windows(params.window_s, self._times, outputs, self._fleet.workers)
        priced = evictions if params.eviction_cost else None
        self._cost = LoadCost(self._windows, self._times, self._tree, priced)

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self._evictions.capacity_tokens = self.params.capacity_tokens or setup.pool_tokens

    def route(self, request: Request, now_s: float) -> int:
        for expired, end in self._windows.expire(now_s):
            self._tree.forget(end, expired)
        found = self._tree.find(request.prompt)
        everyone = self._fleet.everyone
        match = PromptMatch.of(found.node, request.input_tokens, self._tree, everyone)
        worker = self._choose(request, match, now_s)
        end = self._tree.add(found, request.prompt, worker)
        prefill_us = self._times.prefill_us(match.missed_at(worker))
        self._windows.assign(worker, now_s, prefill_us, end)
        self._scaler.note_dispatch(request, worker, end, prefill_us, now_s)
        self._fleet.dispatch(request, worker)
        return worker

    def _choose(self, request: Request, match: PromptMatch, now_s: float) -> int:
        """Run Algorithm 1, then the post-assignment adjustment ([Preble] §3.2)."""
        loads, everyone = self._windows.loads, self._fleet.everyone
        longest, holders = self._tree.holders(match.node)
        if not self.params.exploit or request.input_tokens - longest >= longest:
            mostly_decoding = self._windows.decode_heavy(self.params.imbalance_ratio)
            return self._cheapest(mostly_decoding or everyone, match)
        home = self._tree.home(match.node)
        chosen = home if home != NOWHERE else self._cheapest(holders & everyone, match)
        heaviest, lightest = loads.heaviest_us, loads.lightest_us
        if loads[chosen] == heaviest and heaviest / self.params.rebalance_threshold > lightest:
            return self._fleet.in_turn(loads.lightest(everyone))
        key = self._scaler.overloaded(match.node, chosen, now_s)
        if key is None or not (without := everyone & ~key.workers):
            return chosen
        # The prefix is replicated to the least loaded GPU that lacks it.
        to = self._fleet.in_turn(loads.lightest(without))
        self._scaler.move_half(key, chosen, self._windows[chosen], to, self._tree)
        return to

    def _cheapest(self, among: int, match: PromptMatch) -> int:
        return self._fleet.in_turn(self._cost.cheapest(among, match))

    def on_first_token(self, request: Request, worker: int, at_s: float) -> None:
        self._scaler.note_first_token(request, worker, at_s)

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        self._scaler.note_end(request)
        # A refused request (0 tokens) does not count in the mean output.
        if self._fleet.end_request(request, worker) and output.length:
            self._windows.add_finished(worker, now_s, output.length)

    def on_worker_join(self, worker: int, now_s: float) -> None:
        super().on_worker_join(worker, now_s)
        self._windows.add_gpu(worker)

    def on_worker_left(self, worker: int) -> None:
        self._windows.drop_gpu(worker)
