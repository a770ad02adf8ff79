"""Earliest deadline first: llm-d's edf-ordering-policy (llm-d-router @7c6ba75)."""

from __future__ import annotations

from math import inf

from fairbench.core import Request
from fairbench.schedulers.gateway.ordering.order import Order


class EarliestDeadline(Order):
    """An order by the request's first deadline, else by arrival plus TTL.

    Requests without both go last.
    """

    name = "edf"

    def rank(self, request: Request) -> float:
        if (deadline_s := request.next_deadline_s) is not None:
            return deadline_s
        return request.arrival_s + self.ttl_s if self.ttl_s < inf else inf
