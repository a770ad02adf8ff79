"""Preemption inside SGLang, by SGLang's own functions that take memory from running requests.

The code follows SGLang's own preemption (``PrefillAdder.preempt_to_schedule``, 0.5.17 and 0.5.23),
but fairbench's scheduler chooses the requests to preempt. A preempted request returns its memory
and its part of the pass's token budget, and leaves the batch. A preempted request keeps its
outputs, and is queued again after the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fairbench_engines.sglang.requests import Req, prefix_len

# maximum number of output tokens for which SGLang reserves memory per request
CLIP_MAX_NEW_TOKENS = 4096


class Preemption:
    """The preemptions of an SGLang scheduler; ``began`` must be called before each pass."""

    def __init__(self) -> None:
        self.taken: list[Req] = []  # requests that this pass has preempted
        self._adder: Any = None
        self._server_args: Any = None

    def began(self, scheduler: Any) -> None:
        """Begin a scheduling pass, before SGLang has created its PrefillAdder."""
        self.taken, self._adder = [], None
        self._server_args = getattr(scheduler, "server_args", None)

    def adds(self, original: Callable[..., Any], adder: Any, *args: Any, **named: Any) -> None:
        """Wrap the constructor of PrefillAdder, which holds the token budget of the pass."""
        original(adder, *args, **named)
        self._adder = adder

    @property
    def spent(self) -> bool:
        """Whether the token budget is spent, so that SGLang ends the pass at the next candidate."""
        state = None if self._adder is None else self._adder.budget_state()
        return state is not None and state is type(state).OTHER

    def take(self, req: Req) -> bool:
        """Preempt a request during an admission pass; return False if it cannot be preempted."""
        adder = self._adder
        batch = None if adder is None else adder.running_batch
        if batch is None or req not in batch.reqs or req.finished():
            return False
        index = batch.reqs.index(req)
        self._give_back(adder, adder._get_running_request_total_token_offset(req))
        others = len(batch.reqs) - 1
        if hasattr(adder, "memory_budget"):
            batch.release_req(index, others)
        else:  # SGLang 0.5.17
            batch.release_req(index, others, self._server_args)
        batch.filter_batch(keep_indices=[i for i in range(others + 1) if i != index])
        batch.batch_is_full = False
        self.taken.append(req)
        return True

    @staticmethod
    def _give_back(adder: Any, tokens: float) -> None:
        if hasattr(adder, "memory_budget"):
            adder.memory_budget.total_offset -= tokens
        else:  # SGLang 0.5.17
            adder.rem_total_token_offset -= tokens

    def would_fit(self, req: Req, without: Iterable[Req]) -> bool:
        """Return whether SGLang could admit ``req`` after releasing the requests in ``without``.

        ``would_fit`` makes the same memory check as SGLang's ``add_one_req``. If ``req`` does not
        fit otherwise, the prefixes of the requests in ``without`` also count as free memory.
        """
        adder, gone = self._adder, list(without)
        if adder is None:
            return False
        req.init_next_round_input(adder.tree_cache, cow_mamba=False)
        to_go = max(req.sampling_params.max_new_tokens - len(req.output_ids), 0)
        need = len(req.full_untruncated_fill_ids) - prefix_len(req)
        need += min(to_go, CLIP_MAX_NEW_TOKENS)
        need += getattr(adder, "per_req_token_overhead", adder.page_size)
        with adder._lock_node(req.last_node):
            freed, room = 0.0, adder.rem_total_tokens
            for one in gone:
                freed += self._freed(adder, one)
                if need < room + freed:
                    return True
            for one in gone:
                _unlock(adder.tree_cache, one)
            room = adder.rem_total_tokens
            for one in gone:
                _lock(adder.tree_cache, one)
        return bool(need < room + freed)

    @staticmethod
    def _freed(adder: Any, req: Req) -> float:
        """Return a request's tokens beyond its shared prefix, plus its reserved tokens."""
        # SGLang 0.5.17 stores the prefix length in ``req`` instead of ``req.kv``.
        protected = getattr(req.kv, "cache_protected_len", None)
        protected = req.cache_protected_len if protected is None else protected
        own: float = adder.ceil_paged_tokens(req.kv.kv_allocated_len) - protected
        return own + float(adder._get_running_request_total_token_offset(req))


def _unlock(tree_cache: Any, req: Req) -> None:
    if hasattr(req, "lock"):
        tree_cache.unlock(req.lock)
    else:  # SGLang 0.5.17
        tree_cache.dec_lock_ref(req.last_node)


def _lock(tree_cache: Any, req: Req) -> None:
    if hasattr(req, "lock"):
        req.lock = req.lock and tree_cache.lock(req.last_node)
    else:  # SGLang 0.5.17
        tree_cache.inc_lock_ref(req.last_node)
