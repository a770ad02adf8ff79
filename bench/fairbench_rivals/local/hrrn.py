"""Highest response ratio next: ``--schedule-policy hrrn`` of SGLang (PR 32911, @00550cd1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairbench.core import Request
from fairbench.schedulers.base import SortableQueue, Waiting
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.params import NoParams, NotNegativeInt


class HRRN(FCFS):
    """A scheduler that serves the request with the largest ratio of wait to work first.

    The rule follows ``_sort_by_hrrn`` in SGLang's schedule_policy.py. A request's wait is not
    measured in seconds, but in prompt tokens that the engine has computed since the request
    arrived. A request's work is the number of uncached tokens of its prompt. A request without
    uncached tokens goes first, and a request whose prefix a waiting request will soon cache goes
    last. Equal ratios are ordered by the text of the request's id, as in SGLang.
    """

    name = "hrrn"
    sglang_since = "0.5.20"

    @dataclass(frozen=True)
    class Params(NoParams):
        """Parameters: a queue of more than ``queue_limit`` requests is not sorted.

        SGLang's own limit is 128; a ``queue_limit`` of 0 means no limit.
        """

        queue_limit: NotNegativeInt = 128

    params: Params

    def __init__(self, params: Params) -> None:
        self.params = params

    def sort_queue(self, queue: SortableQueue) -> Sequence[Request] | None:
        limit = self.params.queue_limit
        if limit and len(queue) > limit:
            return None
        return [one.request for one in sorted(queue.matches(), key=_ratio_key)]


def _ratio_key(one: Waiting) -> tuple[float, str]:
    rid = str(one.request.request_id)
    if one.duplicate:
        return float("inf"), rid
    uncached = one.request.input_tokens - one.cached
    return (-one.waited_tokens / uncached if uncached > 0 else -float("inf")), rid
