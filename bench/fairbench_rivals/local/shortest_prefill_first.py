"""Shortest prefill first: ``--schedule-policy shortest-prefill-first`` of SGLang (@00550cd1)."""

from __future__ import annotations

from collections.abc import Sequence

from fairbench.core import Request
from fairbench.schedulers.base import SortableQueue, Waiting
from fairbench.schedulers.local.fcfs import FCFS


class ShortestPrefillFirst(FCFS):
    """A scheduler that serves the request with the fewest uncached prompt tokens first.

    A request goes last if another waiting request will soon compute its prefix. Requests with equal
    sort keys are served in the order in which they entered the queue. The rules are
    ``_sort_by_shortest_prefill`` and ``shortest_prefill_chunk_limit`` in SGLang's
    schedule_policy.py, with pages of one token. If waiting prompts are shorter than the rest of a
    partly prefilled prompt, its next chunk leaves room for all of them in the pass. A client with
    long prompts may starve.
    """

    name = "shortest-prefill-first"
    sglang_since = "0.5.21"

    def sort_queue(self, queue: SortableQueue) -> Sequence[Request]:
        ordered = sorted(queue.matches(), key=_work_key)
        self._work = [_work(one) for one in ordered]
        return [one.request for one in ordered]

    def chunk_limit(self, left: int, budget: int) -> int | None:
        reserved = 0
        for work in self._work:
            if work >= left or reserved + work > budget - 1:
                break
            reserved += work
        return budget - reserved if reserved else None


def _work(one: Waiting) -> int:
    return max(1, one.tokens - one.cached)


def _work_key(one: Waiting) -> tuple[bool, int, int]:
    return one.duplicate, _work(one), one.entered
