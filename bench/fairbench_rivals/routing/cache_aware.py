"""SGLang's cache-aware routing: the rules of the old sgl-router and of its successor smg."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Literal

from fairbench.core import Prompt, Request
from fairbench.schedulers.location_tree import WalkEnd
from fairbench.schedulers.params import Fraction, NotNegative, NotNegativeInt, Positive, PositiveInt
from fairbench.schedulers.routing.bases import CountingRouter
from fairbench_rivals.routing.history_tree import HistoryNode, HistoryTree

CHARS_PER_TOKEN = 4


class CacheAware(CountingRouter):
    """A router that chooses the worker with the longest prefix if the load is balanced.

    The load is imbalanced if most - least > ``balance_abs`` and most > ``balance_rel`` x least,
    where most and least are the extremes of the workers' requests in flight. Under an imbalanced
    load, the worker with the fewest requests is chosen. Under a balanced load, the worker with the
    longest prefix is chosen, if the prefix exceeds the fraction ``cache_threshold`` of the prompt.
    If no prefix is long enough, the parameter ``rules`` decides which worker is chosen:

    - ``sgl-router`` (sgl-project/sglang @026f853, sgl-router/src/policies/cache_aware.rs) chooses
      the worker with the smallest tree.
    - ``smg`` chooses the worker with the fewest requests in flight (lightseekorg/smg @73da68c,
      model_gateway/src/policies/cache_aware.rs, and its fork vllm-project/router). Ties go to the
      worker to which the fewest requests were ever sent.
    - ``sgl-model-gateway`` (sgl-project/sglang @053b63f,
      sgl-model-gateway/src/policies/cache_aware.rs, released as sglang-router 0.3.2; also in
      vllm-router 0.1.17) works like ``smg``, but ties go to the first worker.

    For every value of ``rules``, the router remembers sent prompts and assumes that evicted prompts
    are still cached. The router does not distinguish clients. The routers of SGLang and smg measure
    prompts in characters instead of tokens.

    fairbench reproduces two known defects of SGLang's routers. Unless ``rotate_ties`` is set,
    sgl-router and sgl-model-gateway send all new prompts to the first worker of an idle cluster.
    Unless ``purge_on_leave`` is set, smg remembers the prefixes of removed workers. A request whose
    longest prefix was sent to a removed worker goes to the first worker, and is not added to the
    tree. If several workers have the prefix, the original routers choose arbitrarily, and fairbench
    chooses the worker to which the prefix was sent last.
    """

    name = "cache-aware"
    wants_evictions = True

    @dataclass(frozen=True)
    class Params:
        """Parameters with the defaults of the original command lines, not of the Rust structs.

        ``max_tree_size`` limits the number of prompt characters that the router remembers for each
        worker. With ``kv_events``, smg chooses the worker with the longest cached prefix. Ties go
        to the worker with the fewest requests in flight, then with the smallest tree. In smg, a
        load that is balanced by requests counts as imbalanced if the workers' KV usage differs by
        more than ``balance_usage`` or exceeds ``overload_usage``.
        """

        constants: ClassVar[tuple[str, ...]] = ("balance_usage", "overload_usage", "rotate_ties")

        rules: Literal["sgl-router", "sgl-model-gateway", "smg"] = "smg"
        cache_threshold: Fraction = 0.3
        balance_abs: NotNegativeInt = 64
        balance_rel: NotNegative = 1.5
        eviction_interval_s: Positive = 60.0
        max_tree_size: PositiveInt = 2**26
        kv_events: bool = False
        balance_usage: Fraction = 1.0
        overload_usage: Fraction = 1.0
        rotate_ties: bool = False
        purge_on_leave: bool = False

    def __init__(self, params: Params, workers: int) -> None:
        super().__init__(workers)
        self.params = params
        self._tree = HistoryTree()
        # total number of requests sent to each worker
        self._sent: Counter[int] = Counter()
        self._sweep_s = params.eviction_interval_s

    def route(self, request: Request, now_s: float) -> int:
        if now_s >= self._sweep_s and not self.params.kv_events:
            every = self.params.eviction_interval_s
            self._sweep_s = (now_s // every + 1) * every
            for worker in self._fleet.workers:
                self._tree.shrink(worker, self.params.max_tree_size // CHARS_PER_TOKEN)
        found = self._tree.find(request.prompt)
        loads = self.in_flight_by_worker()
        remembered: int | None
        if self._imbalanced(loads):
            remembered = self._least(loads)
        elif self.params.kv_events:
            remembered = self._most_cached(found, loads)
        else:
            remembered = self._by_history(request, found, loads)
        worker = min(loads) if remembered is None else remembered
        if remembered is not None:
            self._tree.add(found, request.prompt, worker)
            self._sent[worker] += 1
        self._fleet.dispatch(request, worker)
        return worker

    def _imbalanced(self, loads: dict[int, int]) -> bool:
        most, least = max(loads.values()), min(loads.values())
        if most - least > self.params.balance_abs and most > self.params.balance_rel * least:
            return True
        if self.params.rules != "smg":
            return False
        usage = [used for worker in loads if (used := self.usage(worker)) is not None]
        if not usage:
            return False
        spread = max(usage) - min(usage)
        return max(usage) > self.params.overload_usage or spread > self.params.balance_usage

    def _least(self, loads: dict[int, int]) -> int:
        if self.params.rotate_ties:
            return self._fleet.cheapest(loads)
        if self.params.rules != "smg":
            return min(loads, key=lambda w: loads[w])
        return min(loads, key=lambda w: (loads[w], self._sent[w]))

    def _by_history(
        self, request: Request, found: WalkEnd[HistoryNode], loads: dict[int, int]
    ) -> int | None:
        """Return the worker that got the prefix last, or else the least loaded worker."""
        node = next((at for at in self._tree.upward(found.node) if at.used), None)
        if node is not None and node.depth > self.params.cache_threshold * request.input_tokens:
            worker = self._tree.latest(node, node.used)
            return worker if worker in loads else None
        if self.params.rules == "sgl-router":
            return min(loads, key=lambda w: self._tree.tokens[w])
        return self._least(loads)

    def _most_cached(self, found: WalkEnd[HistoryNode], loads: dict[int, int]) -> int:
        cached = {w: n for w, n in self._tree.cached_tokens(found.node).items() if w in loads}
        if not cached:
            return self._least(loads)
        return min(cached, key=lambda w: (-cached[w], loads[w], self._tree.tokens[w]))

    def on_evict(self, prefix: Prompt, evicted_tokens: int, worker: int, now_s: float) -> None:
        if self.params.kv_events:
            self._tree.evict(prefix, evicted_tokens, worker)

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        super().on_worker_leave(worker, now_s)
        if self.params.rules != "smg" or self.params.purge_on_leave or self.params.kv_events:
            self._tree.purge(worker)
