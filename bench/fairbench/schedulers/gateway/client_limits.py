"""Limits on the requests and tokens that each client may have at the workers at a time.

A gateway's queue cannot protect clients from requests that are already in an engine. Many long
prompts of one client delay other clients in the engine's tokenizer, which works in order of
arrival. In the engine, computing long prompts delays the decoding of other requests. The limits in
this module let a client's excess requests wait outside the gateway's queue.
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
from fairbench.schedulers.base import Setup
from fairbench.schedulers.gateway.registry import UNKNOWN_COSTS, GatewayParams
from fairbench.schedulers.load_cap import AUTO, CAP_UNITS, BatchCost, step_units
from fairbench.schedulers.output_lengths import OutputLengths
from fairbench.schedulers.program_states import ProgramStates

# the pair (priority, client), under which a client's requests of one priority are stored
Own: TypeAlias = tuple[int, str]


class ClientLine:
    """The requests of an owner (a client or a tenant) that wait because of the owner's limit.

    Each arriving request gives its client a turn, which is the right to send one request of the
    same priority. Turns are taken in order of priority, from the highest, and then in order of
    arrival. In a turn, the client sends the first waiting request of its oldest program, so that
    programs that have begun go before new programs.
    """

    def __init__(self) -> None:
        # ``_turns`` holds the turns of each priority in order. The key of a turn is the arrival
        # number of the request that brought the turn, and its value is the client.
        self._turns: dict[int, OrderedDict[int, str]] = {}
        # ``_heaps`` holds a heap of requests for each priority and client, sorted by program and
        # then by arrival. A heap may contain requests that were already removed.
        self._heaps: dict[Own, list[tuple[int, int, Request]]] = {}
        self._waiting: Counter[Own] = Counter()
        # ``_places`` maps each waiting request to its priority and arrival number.
        self._places: dict[Request, tuple[int, int]] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._places)

    def add_request(self, request: Request, priority: int, program: int) -> None:
        """Add a request; ``program`` is the rank of its program by age, lowest for the oldest."""
        number, own = next(self._numbers), (priority, request.client)
        self._turns.setdefault(priority, OrderedDict())[number] = request.client
        heappush(self._heaps.setdefault(own, []), (program, number, request))
        self._waiting[own] += 1
        self._places[request] = priority, number

    def first_request(self) -> Request:
        """Return the request that will be sent next. Raises ValueError if no request is waiting."""
        priority = max(self._turns)
        heap = self._heaps[priority, next(iter(self._turns[priority].values()))]
        while True:
            _, number, request = heap[0]
            if self._places.get(request) == (priority, number):
                return request
            heappop(heap)

    def take_first(self) -> Request:
        """Remove and return the request that is sent next, and end its client's turn."""
        request = self.first_request()
        priority, _ = self._places[request]
        self._remove(request, next(iter(self._turns[priority])))
        return request

    def drop_request(self, request: Request) -> bool:
        """Remove a request and a turn of its client, and return whether the request was waiting."""
        if request not in self._places:
            return False
        priority, number = self._places[request]
        turns = self._turns[priority]
        # If another request of the client has used this request's turn, the client's next turn is
        # removed.
        if number not in turns:
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
    """Return the maximum KV memory that an engine may use for a request, in tokens.

    SGLang reserves up to 4,096 output tokens at admission, and vLLM allocates blocks as the output
    grows. SGLang and vLLM retract no running request to admit a new request.
    """
    return request.input_tokens + request.max_new_tokens


class HeldAmounts:
    """The tokens or requests that each owner has at the workers, and their total."""

    def __init__(self) -> None:
        self.by_owner: Counter[str] = Counter()
        self.total = 0

    def add_amount(self, owner: str, more: int) -> None:
        self.by_owner[owner] += more
        self.total += more
        if not self.by_owner[owner]:
            del self.by_owner[owner]


class ClientLimits:
    """The limits that decide which requests of a client enter the gateway's queue.

    - Each worker may have at most ``client_requests`` requests of all clients, with at most
      ``client_limit`` tokens of context in total (``BatchCost``). None means no limit, and
      ``client_limit=auto`` means the engine's load cap.
    - The limits of all workers are divided among the clients that have requests, in proportion to
      their weights. A client without admitted requests may always send one request.
    - The requests at a worker may reserve at most ``client_memory`` tokens in total
      (``reserved_tokens``). A client may use only a part, in proportion to its weight, of the
      capacity that other clients leave unused. This limit keeps heavy clients from using up the
      memory that is reserved for new clients.
    - With ``tenants``, the limits are divided among the top-level tenants instead of the clients.
    - Because running requests are never removed, a reserve stays free for clients that arrive
      later. The reserve is as large as the share of an additional client with the weight
      ``client_reserve``.

    Raises UsageError for ``client_limit=auto`` if no model of the engine's step times is known.
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
        # ``_reserved`` counts the reserved KV memory of each owner in tokens, and ``_running``
        # counts each owner's running requests.
        self._reserved, self._running = HeldAmounts(), HeldAmounts()
        # ``_programs`` numbers the programs in the order of their first requests.
        self._programs = ProgramStates(count().__next__)

    def admits(self, request: Request, priority: int = 0) -> bool:
        """Admit an arriving request and return True, or let it wait and return False."""
        owner = self._owner(request)
        program, _ = self._programs.begin_call(request)
        if owner not in self._lines and self._may_admit(owner, request, self._weights(owner)):
            self._admit(owner, request)
            return True
        self._lines.setdefault(owner, ClientLine()).add_request(request, priority, program)
        return False

    def admit_freed(self) -> Iterator[Request]:
        """Admit waiting requests that the limits now allow, and yield each of them."""
        if not self._lines:
            return
        # An admission does not change the total weight, which includes the waiting clients.
        weights = self._weights()
        for owner in list(self._lines):
            line = self._lines[owner]
            while len(line) and self._may_admit(owner, line.first_request(), weights):
                request = line.take_first()
                self._admit(owner, request)
                yield request
            if not len(line):
                del self._lines[owner]

    def leave_line(self, request: Request) -> bool:
        """Remove a request that waits because of its client's limits; return False for others."""
        owner = self._owner(request)
        line = self._lines.get(owner)
        if line is None or not line.drop_request(request):
            return False
        self._programs.end_call(request)
        if not len(line):
            del self._lines[owner]
        return True

    def end_admitted(self, request: Request, output_tokens: int) -> None:
        """Stop counting an admitted request that has ended or was withdrawn."""
        owner = self._owner(request)
        self._programs.end_call(request)
        self._under_way[owner].end_running(request, output_tokens)
        self._hold(owner, request, -1)
        if not len(self._under_way[owner]):
            del self._under_way[owner]

    def _admit(self, owner: str, request: Request) -> None:
        if owner not in self._under_way:
            self._under_way[owner] = BatchCost(self._lengths)
        self._under_way[owner].add_running(request)
        self._hold(owner, request, 1)

    def _hold(self, owner: str, request: Request, times: int) -> None:
        self._reserved.add_amount(owner, times * reserved_tokens(request))
        self._running.add_amount(owner, times)

    def _may_admit(self, owner: str, request: Request, weights: float) -> bool:
        mine = self._under_way.get(owner)
        if mine is None:
            return True
        assert self._setup.fleet is not None, "limits are of workers"
        weighed = len(self._setup.fleet.workers()) * self._setup.weight(owner)
        if len(mine) + 1 > weighed * self._worker_requests / weights:
            return False
        more = mine.expected_context(request) + self._request_tokens
        most_tokens = weighed * self._worker_tokens / weights
        if mine.cost_tokens(self._request_tokens) + more > most_tokens:
            return False
        if self._worker_memory is None:
            return True
        return self._is_part(
            owner, self._worker_memory, self._reserved, reserved_tokens(request), weights
        ) and self._is_part(owner, self._worker_requests, self._running, 1, weights)

    def _is_part(
        self, owner: str, each: float, held: HeldAmounts, more: int, weights: float
    ) -> bool:
        """Return whether the owner (a client or a tenant) may use ``more`` tokens or requests."""
        assert self._setup.fleet is not None, "limits are of workers"
        weight, mine = self._setup.weight(owner), held.by_owner[owner]
        everything = len(self._setup.fleet.workers()) * each
        left = everything - (held.total - mine)
        most = min(everything / weights, left / (weight + self._reserve))
        return mine + more <= weight * most

    def _weights(self, *newcomers: str) -> float:
        """Return the weights of ``newcomers`` and all owners with requests, plus the reserve."""
        present = {*self._under_way, *self._lines, *newcomers}
        # ``fsum`` returns the same sum for any order of the weights.
        return fsum(map(self._setup.weight, present)) + self._reserve

    def _owner(self, request: Request) -> str:
        return self._setup.lineage(request.client)[0] if self._by_tenant else request.client
