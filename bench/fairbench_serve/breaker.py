"""Circuit breakers, which pause workers that fail requests while other workers serve them.

A refusal (HTTP status 4xx) pauses a worker only for requests of the refused kind. For example, a
worker without the requested model refuses all requests for this model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import inf

# consecutive failures after which a worker's circuit breaker opens
TRIPS_AFTER = 3
# seconds for which a worker gets no requests after its breaker opens for the first time
FIRST_REST_S = 5.0
# maximum number of seconds for which a worker with an open breaker gets no requests
LONGEST_REST_S = 60.0
# maximum number of entries in each of the breaker's tables (refused kinds of requests, clients,
# failed workers)
MOST_KINDS = 1024


@dataclass(slots=True)
class _State:
    failures: int = 0
    # the first two clients whose requests failed at the worker
    clients: set[str] = field(default_factory=set)
    # seconds for which the worker will get no requests after its breaker opens again
    rest_s: float = field(default_factory=lambda: FIRST_REST_S)
    until_s: float = -inf  # time in seconds at which the open breaker allows a probe request
    open: bool = False
    probing: bool = False


class Breakers:
    """The circuit breakers of all workers.

    A failed request counts as a worker's failure only if another worker has served this request. A
    request that fails at every worker thus opens no breaker. After ``TRIPS_AFTER`` consecutive
    failures, the worker's breaker opens and the worker gets no requests for 5 s. Each time the
    breaker opens again, the pause doubles, up to 60 s. After the pause, a single probe request
    decides whether the breaker closes or opens again.

    A breaker stays closed if only one client's requests fail and the worker served another client
    in the last 5 s. The cause may then be that client's requests. ``now_s`` returns the time in
    seconds.
    """

    def __init__(self, workers: int, now_s: Callable[[], float]) -> None:
        self._states = {worker: _State() for worker in range(workers)}
        # ``_served_s`` maps (worker, client) to the time in seconds at which the worker last served
        # the client, the earliest time first.
        self._served_s: dict[tuple[int, str], float] = {}
        self._now_s = now_s

    def forget_worker(self, worker: int) -> None:
        """Stop probing a worker that is being removed."""
        self._states.pop(worker, None)

    def is_open(self, worker: int) -> bool:
        """Return whether a worker's breaker is open; the worker then gets only probe requests."""
        return worker in self._states and self._states[worker].open

    def record_failure(self, worker: int, client: str) -> bool:
        """Record that a client's request failed at a worker, but was served by another worker.

        Returns True if the failure opens the worker's circuit breaker.
        """
        state = self._states.get(worker)
        if state is None:
            return False
        state.failures += 1
        if len(state.clients) < 2:
            state.clients.add(client)
        # Ignore failures of requests that were sent before the breaker opened.
        if state.open and not state.probing:
            return False
        since_s = self._now_s() - FIRST_REST_S
        serves_others = any(
            at == worker and one not in state.clients and served_s > since_s
            for (at, one), served_s in self._served_s.items()
        )
        # If only the requests of one client fail, the worker itself may be healthy.
        is_clients_fault = len(state.clients) == 1 and serves_others
        if not state.open and (state.failures < TRIPS_AFTER or is_clients_fault):
            return False
        opens, state.open, state.probing = not state.open, True, False
        state.until_s = self._now_s() + state.rest_s
        state.rest_s = min(2 * state.rest_s, LONGEST_REST_S)
        return opens

    def record_success(self, worker: int, client: str) -> bool:
        """Record that a client was served; return whether the worker's circuit breaker closes."""
        state = self._states.get(worker)
        if state is None:
            return False
        self._served_s.pop((worker, client), None)
        self._served_s[worker, client] = self._now_s()
        if len(self._served_s) > MOST_KINDS:
            del self._served_s[next(iter(self._served_s))]
        closes = state.open and state.probing
        if closes or not state.open:
            self._states[worker] = _State()
        return closes

    def undecided(self, worker: int) -> None:
        """Record a probe without result, for example because the client disconnected."""
        if worker in self._states:
            self._states[worker].probing = False

    def reset(self, worker: int) -> None:
        """Close the breaker of a returning worker, because the worker is probably a new process."""
        if worker in self._states:
            self._states[worker] = _State()

    def add_worker(self, worker: int) -> None:
        self._states[worker] = _State()

    def probe(self) -> int | None:
        """Return a worker to which the caller must send a probe request now, or None."""
        now_s = self._now_s()
        for worker, state in self._states.items():
            if state.open and not state.probing and state.until_s <= now_s:
                state.probing = True
                return worker
        return None


@dataclass(slots=True)
class _Refused:
    # token counts of the smallest refused requests, in ascending order
    sizes: list[int] = field(default_factory=list)
    clients: set[str] = field(default_factory=set)  # the first two clients with refused requests
    rest_s: float = field(default_factory=lambda: FIRST_REST_S)
    until_s: float = -inf

    def covers(self, size: int, client: str) -> bool:
        concerns = len(self.clients) > 1 or client in self.clients
        return concerns and len(self.sizes) == TRIPS_AFTER and size >= self.sizes[-1]

    def pause_from(self, now_s: float) -> None:
        self.until_s = now_s + self.rest_s
        self.rest_s = min(2 * self.rest_s, LONGEST_REST_S)


class Refusals:
    """The kinds of requests that a worker refuses while other workers serve them.

    A kind is a hash of properties such as model and fields; a size is the number of tokens that a
    request needs. After ``TRIPS_AFTER`` refusals, the worker gets no requests of the same kind and
    at least the same size during a pause. After the pause (see ``Breakers``), one request of a
    refused kind is sent to test the worker. A served request deletes the worker's refusals of equal
    or smaller requests of the same kind. If a single client sent all refused requests, the worker
    still gets requests from other clients.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._kinds: dict[int, dict[int, _Refused]] = {}
        self._now_s = now_s

    def record_refusal(self, worker: int, kind: int, size: int, client: str) -> bool:
        """Record that a worker refused a request that another worker served.

        Returns True if the worker is now paused for requests of the kind ``kind``.
        """
        while len(self._kinds) >= MOST_KINDS and kind not in self._kinds:
            del self._kinds[next(iter(self._kinds))]
        state = self._kinds.setdefault(kind, {}).setdefault(worker, _Refused())
        before = len(state.sizes)
        if len(state.clients) < 2:
            state.clients.add(client)
        state.sizes = sorted([*state.sizes, size])[:TRIPS_AFTER]
        if before == TRIPS_AFTER or len(state.sizes) < TRIPS_AFTER:
            return False
        state.pause_from(self._now_s())
        return True

    def record_service(self, worker: int, kind: int, size: int) -> None:
        """Record that a worker served a request of the given kind and size."""
        state = self._kinds.get(kind, {}).get(worker)
        if state is not None:
            state.sizes = [one for one in state.sizes if one > size]
            if not state.sizes:
                del self._kinds[kind][worker]

    def avoided(self, kind: int, size: int, client: str) -> Collection[int]:
        """Return the workers that a request of the given kind and size should avoid."""
        now_s, found = self._now_s(), []
        for worker, state in self._kinds.get(kind, {}).items():
            if not state.covers(size, client):
                continue
            if state.until_s > now_s:
                found.append(worker)
            else:
                state.pause_from(now_s)
        return found

    def forget_worker(self, worker: int) -> None:
        """Forget which requests a worker refused, because a new process runs at its address."""
        for workers in self._kinds.values():
            workers.pop(worker, None)


class Doubts:
    """The workers whose last request failed, or whose last request of one kind failed.

    The cause of a failure may be the worker or the request itself. A request that failed at one
    worker is not retried at another worker in this collection. A ``kind`` of None stands for all
    kinds of requests.
    """

    def __init__(self) -> None:
        self._doubts: dict[tuple[int, int | None], None] = {}

    def add_doubt(self, worker: int, kind: int | None) -> None:
        self._doubts[worker, kind] = None
        if len(self._doubts) > MOST_KINDS:
            del self._doubts[next(iter(self._doubts))]

    def clear_doubts(self, worker: int, kind: int) -> None:
        """Forget a worker's failures after the worker has served a request of kind ``kind``."""
        self._doubts.pop((worker, None), None)
        self._doubts.pop((worker, kind), None)

    def among(self, workers: Collection[int], kind: int) -> set[int]:
        """Return the workers that failed their last request, or their last request of ``kind``."""
        doubts = self._doubts
        return {one for one in workers if (one, None) in doubts or (one, kind) in doubts}
