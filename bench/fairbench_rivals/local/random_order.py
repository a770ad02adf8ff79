"""Random order: ``--schedule-policy random`` of SGLang (sgl-project/sglang @00550cd1)."""

from __future__ import annotations

from collections.abc import Sequence

from fairbench.core import Request
from fairbench.schedulers.base import SortableQueue
from fairbench.schedulers.local.fcfs import FCFS


class RandomOrder(FCFS):
    """A scheduler that shuffles the waiting queue in each pass.

    The rule follows ``_sort_randomly`` in SGLang's schedule_policy.py. SGLang uses Python's global
    random generator; fairbench calls ``setup.shuffle`` instead.
    """

    name = "random"
    sglang_since = "0.5.3"

    def sort_queue(self, queue: SortableQueue) -> Sequence[Request]:
        order = list(queue.queue_order())
        if self.setup.shuffle is not None:
            self.setup.shuffle(order)
        return order
