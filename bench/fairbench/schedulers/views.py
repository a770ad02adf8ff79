"""The views that a host gives schedulers: the waiting queue, the running batch, and loads.

Plugins in real servers use ``ListView``, which sorts the server's own list like SGLang's
``calc_priority``. Tests compare the simulator's faster queue with ``ListView``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from heapq import heapify, heappop
from itertools import count
from typing import Any, NamedTuple, Protocol

from fairbench.core import Prompt, Request, prompt_tokens
from fairbench.schedulers.prefix_tree import IN_BATCH_TOKENS, Node, head_of

CLIP_MAX_NEW_TOKENS = 4096  # maximum number of output tokens that SGLang reserves memory for


class Scan(Protocol):
    """An iterator over waiting requests in an order that was fixed when the scan was created."""

    def __iter__(self) -> Iterator[Request]: ...

    def __next__(self) -> Request: ...

    def skip(self, client: str) -> None:
        """Skip all further requests of ``client``, in constant time."""

    def skip_debtors(self, credit: Mapping[str, float]) -> None:
        """Skip the remaining requests of clients whose ``credit`` is at most 0.

        The queue scan checks a client's credit at each request of the client.
        """

    def unskip_all(self) -> None:
        """End all skips, so that the scan yields further requests of every client."""


class Running(NamedTuple):
    """A ``Running`` describes a running request, its output tokens and its KV memory in tokens.

    ``held_tokens`` is the context length of the request, including a shared prefix.
    ``reserved_tokens`` is the KV memory in tokens that the engine reserves for the request's future
    outputs, before a reservation ratio is applied.
    """

    request: Request
    output_tokens: int
    held_tokens: int
    reserved_tokens: int


class ClientLoad(NamedTuple):
    """The sums over a client's running requests; ``decode_steps`` counts their output tokens."""

    requests: int
    held_tokens: int
    reserved_tokens: int
    decode_steps: int


class RunningView(Protocol):
    """The running batch at the beginning of the scheduling pass.

    Requests that the scheduling pass has preempted are not in the view. Requests that the pass has
    admitted are only in vLLM's view, and the same pass cannot preempt them.
    """

    @property
    def free_tokens(self) -> int:
        """The tokens of KV memory that are free or hold cached prefixes that no request uses."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Running]:
        """Iterate over the running requests in the order of the batch."""

    def load(self, client: str) -> ClientLoad:
        """Return the load of the client's running requests, by iterating over the whole batch."""

    def would_fit(self, request: Request, without: Collection[Request]) -> bool:
        """Return whether the request could be admitted if the requests in ``without`` did not run.

        Whether the request fits depends on memory, reserved outputs, the load cap, and the requests
        that the current admission pass has admitted. An engine that cannot preempt requests always
        returns False. Every call of ``would_fit`` iterates over the whole batch.
        """


NEEDS_CACHE_AWARE = "match_order() needs cache_aware = True in the scheduler's class"


class WaitingView(Protocol):
    """A scheduler's view of the waiting queue of its host.

    The view contains no admitted request. A ``Scan`` skips requests that are admitted after its
    creation. A retracted request joins the queue at its tail. A preempted request joins the queue
    after the scheduling pass.
    """

    @property
    def running(self) -> RunningView:
        """The batch that runs at the queue's worker."""

    def __len__(self) -> int: ...

    def __contains__(self, request: object) -> bool: ...

    def clients(self) -> Collection[str]:
        """Return the clients with at least one waiting request, in a deterministic order."""

    def oldest(self, client: str) -> Request:
        """Return the client's first request in the order of the queue.

        Precondition: the client has a waiting request.
        """

    def queue_order(self) -> Scan:
        """Return all waiting requests in the order of the queue."""

    def match_order(self, *, refresh: bool = True) -> Scan:
        """Return all waiting requests, longest cached prefix first, in the order of SGLang's LPM.

        With ``refresh=True``, all prompts are matched with the prefix cache at the time of the
        call. The scan keeps this order after an admission in the same pass, although the admission
        may evict cached prefixes. With ``refresh=False``, requests keep the order of the previous
        match, and new requests come last.

        Requests with cached prefixes of equal length keep their previous order. SGLang's in-batch
        deprioritisation puts a request last if at most 32 of its tokens are cached and an earlier
        waiting request begins with the same 32 tokens. Only schedulers that declare ``cache_aware``
        may call ``match_order``.
        """

    def matched_tokens(self, request: Request) -> int:
        """Return the number of cached prompt tokens, at most the prompt's length minus 1."""


class Waiting(NamedTuple):
    """A waiting request, and the result of matching its prompt with the prefix cache.

    ``tokens`` is the length of the prompt, including the outputs of a retracted request; ``cached``
    is the number of cached tokens, less than ``tokens``. ``duplicate`` is true if at most 32 tokens
    are cached and an earlier request begins with the same 32 tokens. ``waited_tokens`` is the
    number of prompt tokens of all requests that the engine has computed since this request entered
    the queue. ``entered`` is the serial number of the request's entry into the queue. ``node`` is
    the node of the prefix tree at which the match ends.
    """

    request: Request
    tokens: int
    cached: int
    duplicate: bool
    waited_tokens: int
    entered: int
    node: Node


class SortableQueue(WaitingView, Protocol):
    """The waiting queue of the simulated SGLang, which a scheduler may sort."""

    def batch(self) -> Iterable[Request]:
        """Return the batch's requests, including requests that have just finished."""

    def matches(self) -> list[Waiting]:
        """Match all waiting requests against the prefix cache, in queue order."""


class Room(NamedTuple):
    """The capacity of a worker's next admission pass, if no running request ends before the pass.

    ``slots`` is the number of requests, ``tokens`` is the KV memory for prompts and reserved
    outputs, and ``prompt_tokens`` is the number of prompt tokens in one iteration. ``tokens`` is an
    upper limit on the memory, because it includes every cached prefix that no request uses yet.
    """

    slots: int
    tokens: int
    prompt_tokens: int


class WorkerLoad(NamedTuple):
    """A worker load describes the unfinished requests at a worker.

    ``in_flight`` is the number of requests that were sent to the worker and have not finished.
    ``queued`` and ``running`` are numbers of requests, or None if unknown. ``tokens`` is the KV
    memory of running requests in tokens. If the worker does not report memory, ``tokens`` is the
    sum of the prompt lengths in flight. ``saturated`` is true if requests wait and none of them can
    be admitted before a running request ends. ``room`` is the worker's free capacity before the
    waiting requests start, or None if unknown.
    """

    in_flight: int
    tokens: int
    queued: int | None = None
    running: int | None = None
    saturated: bool | None = None
    room: Room | None = None


class Read(NamedTuple):
    """A worker's report of the length of a prompt and of its number of cached tokens."""

    input_tokens: int
    cached_tokens: int = 0


class FleetView(Protocol):
    """The available workers and their loads, as a router or a gateway sees them."""

    def workers(self) -> Collection[int]:
        """Return the numbers of the available workers in ascending order."""

    def load(self, worker: int) -> WorkerLoad:
        """Return the load of unfinished requests at a worker."""


class NothingRunning:
    """A ``RunningView`` for hosts without a batch, such as a gateway's queue."""

    @property
    def free_tokens(self) -> int:
        return 0

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Running]:
        return iter(())

    def load(self, client: str) -> ClientLoad:
        return ClientLoad(0, 0, 0, 0)

    def would_fit(self, request: Request, without: Collection[Request]) -> bool:
        return False


def client_load(running: RunningView, client: str) -> ClientLoad:
    """Return the load of a client's running requests."""
    mine = [one for one in running if one.request.client == client]
    return ClientLoad(
        len(mine),
        sum(one.held_tokens for one in mine),
        sum(one.reserved_tokens for one in mine),
        sum(one.output_tokens for one in mine),
    )


class ListScan:
    """A scan of a list of requests, which skips requests that have left the queue."""

    def __init__(self, order: list[Request], waiting: Container[Request]) -> None:
        self._order = iter(order)
        self._waiting = waiting
        self._skipped: set[str] = set()
        # If ``_credit`` is set, the scan offers only requests of clients with positive credit.
        self._credit: Mapping[str, float] | None = None

    def __iter__(self) -> Iterator[Request]:
        return self

    def __next__(self) -> Request:
        for request in self._order:
            client = request.client
            if client in self._skipped or request not in self._waiting:
                continue
            if self._credit is None or self._credit[client] > 0:
                return request
            self._skipped.add(client)
        raise StopIteration

    def rest(self) -> list[Request]:
        """Return the scan's waiting requests as a list; use only before clients are skipped."""
        return list(filter(self._waiting.__contains__, self._order))

    def skip(self, client: str) -> None:
        self._skipped.add(client)

    def skip_debtors(self, credit: Mapping[str, float]) -> None:
        self._credit = credit

    def unskip_all(self) -> None:
        self._skipped.clear()
        self._credit = None


def rest(scan: Iterable[Request]) -> list[Request]:
    """Return the requests that the scan has not offered yet, in the scan's order."""
    return scan.rest() if isinstance(scan, ListScan) else list(scan)


class ListView:
    """A view of the host's queue ``requests``, which ``match_order`` sorts in place.

    ``matched(request)`` returns the number of prompt tokens that are cached now.
    ``prompt(request)`` returns the prompt to prefill, including the outputs of a retracted request.
    """

    def __init__(
        self,
        requests: list[Request],
        matched: Callable[[Request], int],
        prompt: Callable[[Request], Prompt] = lambda request: request.prompt,
    ) -> None:
        self.running: RunningView = NothingRunning()
        self._requests = requests
        self._matched = matched
        self._prompt = prompt
        self._numbers, self._before = count(), count(-1, -1)
        self._arrival = {request: next(self._numbers) for request in requests}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: object) -> bool:
        return request in self._arrival

    def enter(self, request: Request) -> None:
        """Append a request that has arrived or was retracted."""
        self._arrival[request] = next(self._numbers)
        self._requests.append(request)

    def enter_first(self, request: Request) -> None:
        """Insert a preempted request at the head of the queue, as some engines do."""
        self._arrival[request] = next(self._before)
        self._requests.insert(0, request)

    def leave(self, request: Request) -> None:
        self._requests.remove(request)
        del self._arrival[request]

    def clients(self) -> Collection[str]:
        return dict.fromkeys(r.client for r in self._by_arrival())

    def oldest(self, client: str) -> Request:
        return next(r for r in self._by_arrival() if r.client == client)

    def queue_order(self) -> ListScan:
        return ListScan(self._by_arrival(), self._requests)

    def match_order(self, *, refresh: bool = True) -> ListScan:
        if refresh:
            last = self._deprioritized()
            self._requests.sort(key=lambda r: 1 if r in last else -self.matched_tokens(r))
        return ListScan(list(self._requests), self._requests)

    def matched_tokens(self, request: Request) -> int:
        return min(self._matched(request), prompt_tokens(self._prompt(request)) - 1)

    def _by_arrival(self) -> list[Request]:
        return sorted(self._requests, key=self._arrival.__getitem__)

    def _deprioritized(self) -> set[Request]:
        """Return the requests that in-batch deprioritisation puts last (see ``match_order``)."""
        heads: set[Prompt] = set()
        last: set[Request] = set()
        for request in self._requests:
            if self._matched(request) > IN_BATCH_TOKENS:
                continue
            head = head_of(self._prompt(request))
            if head is None:
                continue
            if head in heads:
                last.add(request)
            heads.add(head)
        return last


class QueueView:
    """A WaitingView in order of arrival, for a queue without a prefix cache or a running batch.

    ``elsewhere`` contains the clients that wait at other routers; VTC counts them as waiting when
    it lifts counters.
    """

    def __init__(self, running: RunningView | None = None) -> None:
        self.running: RunningView = NothingRunning() if running is None else running
        self._requests: dict[Request, None] = {}
        self._of_client: dict[str, dict[Request, None]] = {}
        self.elsewhere: Collection[str] = ()

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: object) -> bool:
        return request in self._requests

    def clients(self) -> Collection[str]:
        here = self._of_client.keys()
        return dict.fromkeys((*here, *self.elsewhere)).keys() if self.elsewhere else here

    def oldest(self, client: str) -> Request:
        return next(iter(self._of_client[client]))

    def queue_order(self) -> ListScan:
        return ListScan(list(self._requests), self._requests)

    def match_order(self, *, refresh: bool = True) -> ListScan:
        return self.queue_order()

    def matched_tokens(self, request: Request) -> int:
        return 0

    def by_arrival(self) -> Iterator[Request]:
        """Return the requests in order of arrival, even if schedulers see another order."""
        return iter(list(self._requests))

    def enter(self, request: Request) -> None:
        self._requests[request] = None
        self._of_client.setdefault(request.client, {})[request] = None

    def enter_first(self, request: Request) -> None:
        """Insert a preempted or skipped request at the head of the queue."""
        mine = self._of_client.pop(request.client, {})
        self._of_client = {request.client: {request: None, **mine}, **self._of_client}
        self._requests = {request: None, **self._requests}

    def leave(self, request: Request) -> None:
        del self._requests[request]
        mine = self._of_client[request.client]
        del mine[request]
        if not mine:
            del self._of_client[request.client]


def least_first(view: WaitingView, key: Callable[[Request], Any]) -> Iterator[Request]:
    """Yield the waiting requests by ascending ``key``; equal keys keep the queue order."""
    order = rest(view.queue_order())
    waiting = list(zip(map(key, order), count(), order))
    heapify(waiting)
    while waiting:
        yield heappop(waiting)[2]
