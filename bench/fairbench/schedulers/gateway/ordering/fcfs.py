"""First come, first served within a flow: llm-d's fcfs-ordering-policy, its default."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairbench.core import Request
from fairbench.schedulers.gateway.ordering.order import Order


class Arrival(Order):
    """An order by arrival."""

    name = "fcfs"

    def rank(self, request: Request) -> float:
        return 0.0

    def first(self, flow: Iterable[Request]) -> Request:
        return next(iter(flow))

    def in_order(self, requests: Iterable[Request]) -> Sequence[Request]:
        return list(requests)
