"""The orders in which a gateway can sort the requests of one flow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from math import inf
from typing import ClassVar

from fairbench.core import Request

Matched = Callable[[Request], int]
"""A function that returns how many tokens of a request's prompt are cached at some worker now."""


class Order(ABC):
    """A ranking of requests, lowest first; requests of equal rank go in order of arrival.

    ``ttl_s`` is the longest time for which the queue holds a request, infinite for no limit.
    """

    name: ClassVar[str]

    def __init__(self, ttl_s: float, matched: Matched) -> None:
        self.ttl_s = ttl_s
        self.matched = matched

    @abstractmethod
    def rank(self, request: Request) -> float:
        """Return the request's present rank."""

    def first(self, flow: Iterable[Request]) -> Request:
        """Return the first request of a non-empty flow, which is given in order of arrival."""
        return min(flow, key=self.rank)

    def in_order(self, requests: Iterable[Request]) -> Sequence[Request]:
        """Return requests, given by arrival, in this order as a single flow."""
        return sorted(requests, key=self.rank)


class EarliestDeadline(Order):
    """An order by the request's first deadline, else by arrival plus TTL.

    Requests without both go last. Source: llm-d's edf-ordering-policy (llm-d-router @7c6ba75).
    """

    name = "edf"

    def rank(self, request: Request) -> float:
        if (deadline_s := request.next_deadline_s) is not None:
            return deadline_s
        return request.arrival_s + self.ttl_s if self.ttl_s < inf else inf


# requests of a flow that are matched: matching is expensive, and the queue may be long
LOOKAHEAD = 64


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


class Arrival(Order):
    """An order by arrival: llm-d's fcfs-ordering-policy, its default."""

    name = "fcfs"

    def rank(self, request: Request) -> float:
        return 0.0

    def first(self, flow: Iterable[Request]) -> Request:
        return next(iter(flow))

    def in_order(self, requests: Iterable[Request]) -> Sequence[Request]:
        return list(requests)


ORDERS: dict[str, type[Order]] = {
    order.name: order for order in (Arrival, EarliestDeadline, LongestPrefix)
}
