"""Preble's E2: exploit a cached prefix that is most of the prompt, else explore ([Preble] §3.2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

from annotated_types import Ge, Gt

from fairbench.core import Prompt, Request, Segment
from fairbench.schedulers.base import Router, Setup
from fairbench.schedulers.routing.fleet import Fleet
from fairbench.schedulers.routing.preble_load import GpuWindow, TimeModel
from fairbench.schedulers.routing.preble_tree import PrebleNode, PrebleTree

# Nodes looked at per GPU to price an eviction; what is beyond them is priced like what was seen.
EVICTION_SCAN_NODES = 128


class PrebleE2(Router):
    """E2 in the form of the paper ([Preble] Alg. 1 and 2), not of its code.

    With more tokens cached than missed, the request goes to the GPU of lowest cost among those that
    hold its longest match; otherwise to the GPU of lowest cost of all. Cost is L + M + P: load of
    the window, recomputation of what would be evicted, and prefill of what is missed there.
    Requests that would exploit the most loaded GPU go to the least loaded one while the loads
    (L) are further apart than the threshold. Ties in rotation.

    Not here yet: scaling a prefix out to more GPUs when its queueing time doubles, and sending
    explored requests to a GPU that is mostly decoding (IMBALR). The paper gives no values.
    """

    name = "preble-e2"
    wants_evictions = True

    @dataclass(frozen=True)
    class Params:
        """``window_s`` is H, ``rebalance_threshold`` is Th_bal (1.5 in Preble's code;
        inf: never rebalance).

        ``capacity_tokens`` is a worker's KV pool, with which M is computed; 0 means what the home
        tells (``Setup.pool_tokens``), and M is 0 if it does not. The router knows which prompts a
        worker holds, not which outputs, so it sees a pool as full somewhat late.
        ``default_output_tokens`` stands for the average output until something has finished on
        the GPU. The prefill times are Preble's for
        Mistral 7B on an A100: linear from ``prefill_linear_from_tokens`` on, below that
        ``prefill_short_ms``, and ``prefill_tiny_ms`` under 64 tokens. ``decode_ms_per_token`` is
        that of an 8B model on an A100, one request at a time.
        """

        window_s: Annotated[float, Gt(0)] = 180.0
        rebalance_threshold: Annotated[float, Ge(1)] = 1.5
        capacity_tokens: Annotated[int, Ge(0)] = 0
        default_output_tokens: Annotated[float, Ge(0)] = 45.0
        prefill_ms_per_token: Annotated[float, Ge(0)] = 0.05031337
        prefill_base_ms: Annotated[float, Ge(0)] = 5.506
        prefill_linear_from_tokens: Annotated[int, Ge(0)] = 256
        prefill_short_ms: Annotated[float, Ge(0)] = 10.5
        prefill_tiny_ms: Annotated[float, Ge(0)] = 8.96
        decode_ms_per_token: Annotated[float, Ge(0)] = 12.5

    def __init__(self, params: Params, workers: int) -> None:
        self.params = params
        self._times = TimeModel(
            prefill_ms_per_token=params.prefill_ms_per_token,
            prefill_base_ms=params.prefill_base_ms,
            prefill_linear_from_tokens=params.prefill_linear_from_tokens,
            prefill_short_ms=params.prefill_short_ms,
            prefill_tiny_ms=params.prefill_tiny_ms,
            decode_ms_per_token=params.decode_ms_per_token,
        )
        self._capacity = params.capacity_tokens
        self._fleet = Fleet(workers)
        self._tree = PrebleTree()
        self._windows = {w: self._window() for w in self._fleet.workers}

    def _window(self) -> GpuWindow:
        params = self.params
        return GpuWindow(params.window_s, self._times, params.default_output_tokens)

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self._capacity = self._capacity or setup.pool_tokens

    def route(self, request: Request, now_s: float) -> int:
        self._expire(now_s)
        found = self._tree.find(request.prompt)
        cached = self._tree.cached_tokens(found.node)
        missed = {w: request.input_tokens - cached.get(w, 0) for w in self._fleet.workers}
        worker = self._choose(request, found.node, missed)
        end = self._tree.add(found, request.prompt, worker)
        self._windows[worker].assign(now_s, self._times.prefill_us(missed[worker]), end)
        self._fleet.dispatch(request, worker)
        return worker

    def _expire(self, now_s: float) -> None:
        for worker, window in self._windows.items():
            for end in window.expire(now_s):
                self._tree.forget(end, worker)

    def _choose(self, request: Request, node: PrebleNode, missed: dict[int, int]) -> int:
        """Algorithm 1, then the post-assignment adjustment ([Preble] §3.2)."""
        loads = {worker: self._windows[worker].load_us for worker in self._fleet.workers}
        longest, holders = self._tree.holders(node)
        if request.input_tokens - longest >= longest:
            return self._cheapest(self._fleet.workers, loads, missed, node)
        exploited = [worker for worker in self._fleet.workers if holders >> worker & 1]
        chosen = self._cheapest(exploited, loads, missed, node)
        heaviest, lightest = max(loads.values()), min(loads.values())
        if loads[chosen] == heaviest and heaviest / self.params.rebalance_threshold > lightest:
            return self._fleet.cheapest(loads)
        return chosen

    def _cheapest(
        self,
        workers: list[int],
        loads: dict[int, int],
        missed: dict[int, int],
        node: PrebleNode,
    ) -> int:
        """The worker of lowest L + M + P. ``node`` ends the cached part of the prompt."""
        if len(workers) == 1:
            return workers[0]
        keep = frozenset(self._tree.upward(node)) if self._capacity else frozenset()
        return self._fleet.cheapest(
            {
                worker: loads[worker]
                + self._eviction_us(worker, missed[worker], keep)
                + self._times.prefill_us(missed[worker])
                for worker in workers
            }
        )

    def _eviction_us(self, worker: int, missed: int, keep: Collection[PrebleNode]) -> float:
        """M: prefill time of each node evicted, times its share of the GPU's requests ([gaps] D1).

        The path of the request itself (``keep``) is never evicted for it.
        """
        requests = self._windows[worker].requests
        needed = self._tree.held_tokens[worker] + missed - self._capacity
        if not self._capacity or needed <= 0 or not requests:
            return 0
        victims = self._tree.victims(worker, needed, keep)
        return self._price_us(islice(victims, EVICTION_SCAN_NODES), worker, needed) / requests

    def _price_us(
        self, victims: Iterable[tuple[PrebleNode, int]], worker: int, needed: int
    ) -> float:
        """Prefill time times hits, summed, and scaled up to all ``needed`` tokens."""
        freed = price_us = 0
        for node, tokens in victims:
            freed += tokens
            price_us += self._times.prefill_us(tokens) * node.hits.get(worker, 0)
        return price_us * needed / freed if freed else 0

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        # A refused request (0 tokens) says nothing about output lengths.
        if self._fleet.finish(request, worker) and output.length:
            self._windows[worker].finish(now_s, output.length)

    def on_evict(self, prefix: Prompt, evicted_tokens: int, worker: int, now_s: float) -> None:
        self._tree.evict(prefix, evicted_tokens, worker)

    def on_worker_join(self, worker: int, now_s: float) -> None:
        self.on_worker_leave(worker, now_s)
        self._fleet.join(worker)
        self._windows[worker] = self._window()

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        if worker in self._fleet:
            self._fleet.leave(worker)
            self._tree.purge(worker)
            del self._windows[worker]
