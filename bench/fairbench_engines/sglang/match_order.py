"""Hooks by which SGLang matches prefixes and sorts its queue only if fairbench's scheduler asks."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from fairbench.errors import UsageError
from fairbench_engines.sglang.requests import Req, cached_len

POLICY = "sglang.srt.managers.schedule_policy"

Original = Callable[..., Any]


class MatchOrderHooks:
    """Three hooks of SGLang's SchedulePolicy, and the functions that LiveView calls.

    A hook receives the wrapped function and its arguments. If fairbench's scheduler needs requests
    sorted by cached tokens, SGLang runs its policy lpm, even if more than 128 requests wait.
    Otherwise, SGLang runs its policy fcfs.
    """

    def __init__(self, cache_aware: bool) -> None:
        self.cache_aware = cache_aware
        self._sorting = False
        self._looked = False  # whether the scheduler has looked at the queue in this pass
        self._prioritize: Callable[[list[Req]], Any]
        self._queue: list[Req]

    def choose_policy(self, original: Original, policy: Any, name: str, tree_cache: Any) -> Any:
        """Wrap ``_validate_and_adjust_policy``: choose lpm if the scheduler is cache-aware."""
        if name != "fcfs":
            raise UsageError(
                f"--schedule-policy {name} cannot be combined with FAIRBENCH_LOCAL; remove the flag"
            )
        self._unsorted = original(policy, "fcfs", tree_cache)
        self._sorted = original(policy, "lpm" if self.cache_aware else "fcfs", tree_cache)
        return self._sorted

    def active_policy(self, original: Original, policy: Any, waiting_queue: list[Req]) -> Any:
        """Wrap ``_determine_active_policy``, which applies SGLang's limit of 128 requests."""
        return self._sorted if self._sorting else self._unsorted

    def begin_pass(
        self, original: Original, policy: Any, waiting_queue: list[Req], *args: Any, **named: Any
    ) -> None:
        """Wrap ``calc_priority``; delay sorting until a cache-aware scheduler reads the queue."""
        self._policy, self._queue, self._looked = policy, waiting_queue, False
        self._prioritize = lambda queue: original(policy, queue, *args, **named)
        if not self.cache_aware:
            self._prioritize(waiting_queue)

    def sort(self, refresh: bool) -> list[Req]:
        """Return the queue; if ``refresh`` is True, sort the queue by match length first."""
        if refresh or not self._looked:
            self._sorting, self._looked = refresh, True
            self._prioritize(self._queue)
        return self._queue

    def unsorted(self, head: Callable[[int], list[Req]]) -> None:
        """Let SGLang match the first requests of the queue, and keep the queue's order."""
        self._sorting = False
        self._prioritize(
            head(getattr(import_module(POLICY), "WAITING_QUEUE_PREFIX_MATCH_MAX", 128))
        )

    def match(self, req: Req) -> int:
        """Return a request's number of cached tokens; its last token never counts as cached."""
        # SGLang calls ``init_next_round_input`` before each attempt to admit a request.
        req.init_next_round_input(self._policy.tree_cache, cow_mamba=False)
        return cached_len(req)
