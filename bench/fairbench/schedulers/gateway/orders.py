"""The orders in which a gateway can send the requests of one client and one priority (a flow)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from math import inf
from typing import ClassVar

from fairbench.core import Request

Matched = Callable[[Request], int]
"""A function that returns the length (tokens) of a prompt's longest cached prefix at any worker."""


class Order(ABC):
    """A ranking of requests: the request of lowest rank is sent first; ties go by arrival.

    ``ttl_s`` is the maximum time in seconds that a request may be queued, or inf.
    """

    name: ClassVar[str]

    def __init__(self, ttl_s: float, matched: Matched) -> None:
        self.ttl_s = ttl_s
        self.matched = matched

    @abstractmethod
    def rank(self, request: Request) -> float:
        """Return the current rank of the request."""

    def first_of(self, flow: Iterable[Request]) -> Request:
        """Return the request of ``flow`` (a client's queue) that is sent first.

        Precondition: ``flow`` is not empty, and is sorted by arrival.
        """
        return min(flow, key=self.rank)

    def ordered(self, requests: Iterable[Request]) -> Sequence[Request]:
        """Sort requests by ``rank``. Precondition: ``requests`` are in order of arrival."""
        return sorted(requests, key=self.rank)


class EarliestDeadline(Order):
    """An order by deadline; a request without a deadline uses its arrival plus ``ttl_s``.

    A request without a deadline is sent last if ``ttl_s`` is infinite. Source: llm-d's
    edf-ordering-policy (llm-d-router @7c6ba75).
    """

    name = "edf"

    def rank(self, request: Request) -> float:
        if (deadline_s := request.next_deadline_s) is not None:
            return deadline_s
        return request.arrival_s + self.ttl_s if self.ttl_s < inf else inf


# maximum number of a client's requests that are compared, because a look-up of prefixes is slow
LOOKAHEAD = 64


class LongestPrefix(Order):
    """An order that sends the request with the longest cached prefix at any worker first.

    A request with a short cached prefix may starve if requests with longer prefixes keep arriving.
    """

    name = "longest-prefix"

    def rank(self, request: Request) -> float:
        return -self.matched(request)

    def first_of(self, flow: Iterable[Request]) -> Request:
        return super().first_of(islice(flow, LOOKAHEAD))


class ArrivalOrder(Order):
    """Requests in order of arrival, as in llm-d's default fcfs-ordering-policy."""

    name = "fcfs"

    def rank(self, request: Request) -> float:
        return 0.0

    def first_of(self, flow: Iterable[Request]) -> Request:
        return next(iter(flow))

    def ordered(self, requests: Iterable[Request]) -> Sequence[Request]:
        return list(requests)


ORDERS: dict[str, type[Order]] = {
    order.name: order for order in (ArrivalOrder, EarliestDeadline, LongestPrefix)
}
