"""Routing key: ``--schedule-policy routing-key`` of SGLang (sgl-project/sglang @00550cd1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fairbench.core import Request
from fairbench.schedulers.base import SortableQueue
from fairbench.schedulers.local.fcfs import FCFS


class RoutingKey(FCFS):
    """A scheduler that first serves the clients with the most running requests.

    The rule is ``_sort_by_routing_key`` in SGLang's schedule_policy.py. The routing key of a
    request is the name of its client. While no request runs, the queue is not sorted. Clients
    without a running request may starve.
    """

    name = "routing-key"
    sglang_since = "0.5.8"

    def sort_queue(self, queue: SortableQueue) -> Sequence[Request] | None:
        running = Counter(request.client for request in queue.batch())
        if not running:
            return None

        def key(request: Request) -> tuple[int, int, str]:
            client = request.client
            return (0, -running[client], client) if client in running else (1, 0, client)

        return sorted(queue.queue_order(), key=key)
