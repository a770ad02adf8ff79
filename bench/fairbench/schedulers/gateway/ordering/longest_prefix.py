"""An order by the longest prefix that some worker has cached: the cheapest request goes first."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from fairbench.core import Request
from fairbench.schedulers.gateway.ordering.order import Order

LOOKAHEAD = 64  # requests of a flow: matching is dear, and the queue may be long


class LongestPrefix(Order):
    """An order by the longest match at any worker, among the first 64 requests of a flow.

    A request with a short match may be skipped as long as others keep arriving: its wait is
    unbounded.
    """

    name = "longest-prefix"

    def rank(self, request: Request) -> float:
        return -self.matched(request)

    def first(self, flow: Iterable[Request]) -> Request:
        return super().first(islice(flow, LOOKAHEAD))
