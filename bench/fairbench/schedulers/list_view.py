"""Waiting queues as plain lists: the queue of an engine (SGLang's ``calc_priority``) or a gateway.

The lists are slow and obviously correct. Plugins in real servers use ``ListView``, which sorts the
server's own list; tests compare the simulator's incremental queue with ``ListView``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping
from itertools import count

from fairbench.core import Prompt, Request, prompt_tokens
from fairbench.schedulers.prefix_tree import IN_BATCH_TOKENS, head_of
from fairbench.schedulers.views import NothingRunning, RunningView


class ListScan:
    """A frozen order over requests, which leaves out the requests that wait no more."""

    def __init__(self, order: list[Request], waiting: Container[Request]) -> None:
        self._order = iter(order)
        self._waiting = waiting
        self._skipped: set[str] = set()
        # if set, only requests of clients with a positive credit are offered
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

    def skip(self, client: str) -> None:
        self._skipped.add(client)

    def skip_debtors(self, credit: Mapping[str, float]) -> None:
        self._credit = credit

    def unskip_all(self) -> None:
        self._skipped.clear()
        self._credit = None


class ListView:
    """A view of the host's queue ``requests``, which ``match_order`` sorts in place.

    ``matched(request)`` returns how many tokens of the request's prompt are cached now, possibly
    all. ``prompt(request)`` returns the prompt to prefill, which includes the outputs of a
    retracted request.
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
        """Append an arrival or a retracted request."""
        self._arrival[request] = next(self._numbers)
        self._requests.append(request)

    def enter_first(self, request: Request) -> None:
        """Insert a preempted request at the head, for engines that do so."""
        self._arrival[request] = next(self._before)
        self._requests.insert(0, request)

    def leave(self, request: Request) -> None:
        """Remove an admitted request."""
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
        """Return the cold requests whose first 32 tokens an earlier cold request shares."""
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
    """A WaitingView in order of arrival, with nothing cached and no running batch.

    ``elsewhere`` are clients that wait at other routers, and whose requests are not in the view.
    Only ``on_arrival`` depends on these clients: a client that waits at any router is not lifted,
    and no lift exceeds the counter of a client that waits at another router.
    """

    def __init__(self, running: RunningView | None = None) -> None:
        self.running: RunningView = NothingRunning() if running is None else running
        self._requests: dict[Request, None] = {}  # waiting requests in queue order
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

    # The host calls the following methods.

    def by_arrival(self) -> Iterator[Request]:
        """Return the requests in queue order, regardless of the order that a scheduler sees."""
        return iter(list(self._requests))

    def enter(self, request: Request) -> None:
        """Append an arrival or a retracted request."""
        self._requests[request] = None
        self._of_client.setdefault(request.client, {})[request] = None

    def enter_first(self, request: Request) -> None:
        """Insert a preempted or skipped request at the head, for engines that do so."""
        mine = self._of_client.pop(request.client, {})
        self._of_client = {request.client: {request: None, **mine}, **self._of_client}
        self._requests = {request: None, **self._requests}

    def leave(self, request: Request) -> None:
        """Remove a request that was admitted or aborted."""
        del self._requests[request]
        mine = self._of_client[request.client]
        del mine[request]
        if not mine:
            del self._of_client[request.client]
