"""Limits of clients: each client gets at most its share of an efficient batch at the workers.

A fair queue orders its waiting requests. Its order does not apply to running requests, nor to
requests before them in an engine's tokenizer: a flood of long prompts makes other clients wait
there in order of arrival, and then at every step, because of its long contexts. The flood is
therefore queued here.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from math import fsum, inf
from typing import TypeAlias

from fairbench.core import Request
from fairbench.errors import UsageError
from fairbench.schedulers.gateway.registry import UNKNOWN_COSTS, GatewayParams
from fairbench.schedulers.load_cap import AUTO, CAP_UNITS, BatchCost, OutputLengths, step_units
from fairbench.schedulers.local.programs import Programs
from fairbench.schedulers.setup import Setup

Own: TypeAlias = tuple[int, str]  # a client's requests of one priority


class ClientLine:
    """The requests of an owner (one client or several) that wait until the owner may have more.

    Each arrival is a turn of its client: the highest priority first, then in order of arrival. In
    its turn a client sends its request of that priority whose program came first, so requests of
    begun programs come before new programs; within a program, requests go by arrival.
    """

    def __init__(self) -> None:
        self._turns: dict[int, OrderedDict[int, str]] = {}  # turns by priority; none is empty
        # may include requests that have left
        self._heaps: dict[Own, list[tuple[int, int, Request]]] = {}
        self._waiting: Counter[Own] = Counter()
        self._places: dict[Request, tuple[int, int]] = {}  # priority and number, by waiting request
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
        """Remove a waiting request with a turn of its client; return False if not waiting."""
        if request not in self._places:
            return False
        priority, number = self._places[request]
        turns = self._turns[priority]
        if number not in turns:  # another request of the client has used this turn
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


def reserved_tokens(request: Request) -> int:
    """Return the most KV memory that an engine may hold for a request, in tokens.

    SGLang reserves the prompt and up to 4,096 output tokens when it admits a request, and more as
    the answer grows; vLLM takes blocks as the answer grows. No engine takes running requests back
    for a newcomer, so only the whole request is a safe count.
    """
    return request.input_tokens + request.max_new_tokens


class Held:
    """The amounts that owners hold, and the total."""

    def __init__(self) -> None:
        self.by_owner: Counter[str] = Counter()
        self.total = 0

    def add(self, owner: str, more: int) -> None:
        self.by_owner[owner] += more
        self.total += more
        if not self.by_owner[owner]:
            del self.by_owner[owner]


class ClientLimits:
    """Limits that decide which requests enter the queue; the rest wait by priority and program.

    - A worker may hold ``client_limit`` of context, as in ``batch_cost``, and ``client_requests``
    requests. ``auto`` is the value of the load cap; None is no limit.
    - Present clients share both limits, over all workers, by weight. A client without admitted
    requests may always send one.
    - A worker may hold requests that reserve ``client_memory`` (``reserved_tokens``). A client is
    then also limited in memory and requests to its part of what other clients leave: without that,
    a second greedy client would take what the first one had to leave.
    - With ``tenants``, the sharing is between the outermost tenants, independent of their
    clients' names.
    - Running requests are never removed for later clients. A ``reserve`` is therefore kept: the
      share of absent clients with that weight.

    Raises UsageError for ``auto`` if step costs are unknown.
    """

    def __init__(self, params: GatewayParams, setup: Setup) -> None:
        tokens, requests = params.client_limit, params.client_requests
        units = step_units(setup.costs)
        self._request_tokens = 0.0 if units is None else units.request_tokens
        self._worker_requests = inf if requests is None else float(requests)
        if tokens != AUTO:
            self._worker_tokens = inf if tokens is None else float(tokens)
        elif units is not None:
            self._worker_tokens = CAP_UNITS * units.unit_tokens
        else:
            raise UsageError(UNKNOWN_COSTS)
        self._worker_memory = params.client_memory
        self._by_tenant = params.tenants is not None
        self._reserve = params.client_reserve
        self._setup = setup
        self._lengths = OutputLengths()
        self._lines: dict[str, ClientLine] = {}
        self._under_way: dict[str, BatchCost] = {}
        self._reserved, self._running = Held(), Held()  # tokens of memory, requests
        self._programs = Programs(count().__next__)  # the numbers of the programs that have come

    def enters(self, request: Request, priority: int = 0) -> bool:
        """Admit an arriving request if possible, else put it in line; return whether it entered."""
        owner = self._owner(request)
        program, _ = self._programs.enter(request)
        if owner not in self._lines and self._has_room(owner, request, self._weights(owner)):
            self._go(owner, request)
            return True
        self._lines.setdefault(owner, ClientLine()).add(request, priority, program)
        return False

    def freed(self) -> Iterator[Request]:
        """Admit and yield the requests in line that can enter now."""
        if not self._lines:
            return
        weights = self._weights()  # equal for all: the clients in line are counted already
        for owner in list(self._lines):
            line = self._lines[owner]
            while len(line) and self._has_room(owner, line.first(), weights):
                request = line.go()
                self._go(owner, request)
                yield request
            if not len(line):
                del self._lines[owner]

    def withdraw(self, request: Request) -> bool:
        """Withdraw a request; return False if it is not in line."""
        owner = self._owner(request)
        line = self._lines.get(owner)
        if line is None or not line.leave(request):
            return False
        self._programs.leave(request)
        if not len(line):
            del self._lines[owner]
        return True

    def over(self, request: Request, output_tokens: int) -> None:
        """Handle an admitted request that has ended or was withdrawn."""
        owner = self._owner(request)
        self._programs.leave(request)
        self._under_way[owner].finish(request, output_tokens)
        self._hold(owner, request, -1)
        if not len(self._under_way[owner]):
            del self._under_way[owner]

    def _go(self, owner: str, request: Request) -> None:
        if owner not in self._under_way:
            self._under_way[owner] = BatchCost(self._lengths)
        self._under_way[owner].enter(request)
        self._hold(owner, request, 1)

    def _hold(self, owner: str, request: Request, times: int) -> None:
        self._reserved.add(owner, times * reserved_tokens(request))
        self._running.add(owner, times)

    def _has_room(self, owner: str, request: Request, weights: float) -> bool:
        mine = self._under_way.get(owner)
        if mine is None:
            return True
        assert self._setup.fleet is not None, "limits are of workers"
        weighed = len(self._setup.fleet.workers()) * self._setup.weight(owner)
        if len(mine) + 1 > weighed * self._worker_requests / weights:
            return False
        more = mine.expected_context(request) + self._request_tokens
        most_tokens = weighed * self._worker_tokens / weights
        if mine.tokens(self._request_tokens) + more > most_tokens:
            return False
        return self._worker_memory is None or self._leaves_room(owner, request, weights)

    def _leaves_room(self, owner: str, request: Request, weights: float) -> bool:
        """Return whether the owner would leave their parts to present and absent others."""
        assert self._worker_memory is not None, "there is a limit"
        return self._is_part(
            owner, self._worker_memory, self._reserved, reserved_tokens(request), weights
        ) and self._is_part(owner, self._worker_requests, self._running, 1, weights)

    def _is_part(self, owner: str, each: float, held: Held, more: int, weights: float) -> bool:
        """Return whether ``more`` for the owner stays within its part of ``each`` worker's limit.

        The part is the owner's share among present and absent owners, and at most its share of what
        other owners leave, among absent owners.
        """
        assert self._setup.fleet is not None, "limits are of workers"
        weight, mine = self._setup.weight(owner), held.by_owner[owner]
        everything = len(self._setup.fleet.workers()) * each
        left = everything - (held.total - mine)
        most = min(everything / weights, left / (weight + self._reserve))
        return mine + more <= weight * most

    def _weights(self, *newcomers: str) -> float:
        """Return the total weight of present clients and newcomers, plus the reserve."""
        present = {*self._under_way, *self._lines, *newcomers}
        # the sum is equal in any order
        return fsum(map(self._setup.weight, present)) + self._reserve

    def _owner(self, request: Request) -> str:
        return self._setup.lineage(request.client)[0] if self._by_tenant else request.client
