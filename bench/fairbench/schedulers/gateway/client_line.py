"""A line before the gateway: turns go by arrival, and a turn takes the client's oldest program."""

from __future__ import annotations

from collections import Counter, OrderedDict
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias

from fairbench.core import Request

Own: TypeAlias = tuple[int, str]  # the requests of a priority that are of one client


class ClientLine:
    """The requests of an owner (one client or several) that wait until the owner may have more.

    Each that comes is a turn of its client: first are those of the highest priority, then in order
    of arrival. In its turn a client sends the request, of that priority, whose program came first,
    so that what it has begun is not behind what it begins; within a program by arrival.
    """

    def __init__(self) -> None:
        self._turns: dict[int, OrderedDict[int, str]] = {}  # by priority; none is empty
        self._heaps: dict[Own, list[tuple[int, int, Request]]] = {}  # with some that have left
        self._waiting: Counter[Own] = Counter()
        self._places: dict[Request, tuple[int, int]] = {}  # priority and number of all who wait
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._places)

    def add(self, request: Request, priority: int, program: int) -> None:
        """Add a request; ``program`` is the number of its program, lowest for the oldest."""
        number, own = next(self._numbers), (priority, request.client)
        self._turns.setdefault(priority, OrderedDict())[number] = request.client
        heappush(self._heaps.setdefault(own, []), (program, number, request))
        self._waiting[own] += 1
        self._places[request] = priority, number

    def first(self) -> Request:
        """Return the next request. Raises ValueError if no request waits."""
        priority = max(self._turns)
        heap = self._heaps[priority, next(iter(self._turns[priority].values()))]
        while True:
            _, number, request = heap[0]
            if self._places.get(request) == (priority, number):
                return request
            heappop(heap)

    def go(self) -> Request:
        """Remove and return the next request, using the first turn."""
        request = self.first()
        priority, _ = self._places[request]
        self._remove(request, next(iter(self._turns[priority])))
        return request

    def leave(self, request: Request) -> bool:
        """Remove a waiting request and its turn, or its client's first turn.

        Return False if not waiting.
        """
        if request not in self._places:
            return False
        priority, number = self._places[request]
        turns = self._turns[priority]
        if number not in turns:  # another of the client's has gone in it
            number = next(one for one, client in turns.items() if client == request.client)
        self._remove(request, number)
        return True

    def _remove(self, request: Request, turn: int) -> None:
        priority, _ = self._places.pop(request)
        del self._turns[priority][turn]
        if not self._turns[priority]:
            del self._turns[priority]
        own = (priority, request.client)
        self._waiting[own] -= 1
        if not self._waiting[own]:
            del self._waiting[own], self._heaps[own]
