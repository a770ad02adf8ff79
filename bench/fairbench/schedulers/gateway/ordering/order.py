"""The interface of an order within a flow, which ranks requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from fairbench.core import Request

Matched = Callable[[Request], int]
"""How many tokens of a request's prompt are cached at some worker now."""


class Order(ABC):
    """A ranking of requests, lowest first; requests of equal rank go in order of arrival.

    ``ttl_s`` is how long the queue holds a request at most, infinite if for ever.
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
