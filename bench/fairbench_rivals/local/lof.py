"""Longest output first: ``--schedule-policy lof`` of SGLang (sgl-project/sglang @00550cd1)."""

from __future__ import annotations

from collections.abc import Sequence

from fairbench.core import Request
from fairbench.schedulers.base import SortableQueue
from fairbench.schedulers.local.fcfs import FCFS


class LOF(FCFS):
    """A scheduler that serves the request with the largest ``max_new_tokens`` first.

    The rule follows ``_sort_by_longest_output`` in SGLang's schedule_policy.py. Requests with equal
    lengths keep their order in the queue. Clients that ask for short answers may starve.
    """

    name = "lof"
    sglang_since = "0.5.3"

    def sort_queue(self, queue: SortableQueue) -> Sequence[Request]:
        return sorted(queue.queue_order(), key=lambda request: -request.max_new_tokens)
