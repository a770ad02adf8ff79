"""The circuit breaker, which pauses workers that fail requests others can serve.

A refusal (HTTP status 4xx) concerns a kind of request rather than the worker: the worker may lack
the model, or its context may be too short for the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import inf

# failures in a row after which the breaker opens
TRIPS_AFTER = 3
# seconds without requests after a breaker opens for the first time
FIRST_REST_S = 5.0
# most seconds without requests
LONGEST_REST_S = 60.0
# most kinds of requests, clients and failing workers that are remembered
MOST_KINDS = 1024


@dataclass(slots=True)
class _State:
    # failures in a row
    failures: int = 0
    # the first two clients whose requests failed at the worker
    clients: set[str] = field(default_factory=set)
    # seconds without requests after the breaker opens the next time
    rest_s: float = field(default_factory=lambda: FIRST_REST_S)
    until_s: float = -inf  # time in seconds at which the open breaker lets a probe through
    open: bool = False
    probing: bool = False


class Breakers:
    """The circuit breakers of all workers.

    ``now_s`` returns the time in seconds.

    A worker's failure counts only if another worker has served the same request. Otherwise,
    requests
    that fail everywhere could make all workers unavailable. After ``TRIPS_AFTER`` consecutive
    failures, the worker's breaker opens: the worker gets no requests for 5 s, or for twice as long
    each time it opens again, up to 60 s. The breaker then allows a single probe request, whose
    result
    closes or opens it.

    A breaker stays closed if only a single client's requests fail and the worker has served another
    client in the last 5 s, because these requests may cause the failures.
    """

    def __init__(self, workers: int, now_s: Callable[[], float]) -> None:
        self._states = {worker: _State() for worker in range(workers)}
        # time in seconds at which each worker last served each client, the latest last
        self._served_s: dict[tuple[int, str], float] = {}
        self._now_s = now_s

    def forget_worker(self, worker: int) -> None:
        """Stop probing a worker that is being removed."""
        self._states.pop(worker, None)

    def is_open(self, worker: int) -> bool:
        """Return whether a worker's breaker is open, so that it gets only probes."""
        return worker in self._states and self._states[worker].open

    def record_failure(self, worker: int, client: str) -> bool:
        """Record that a worker failed a client's request, which another worker then served.

        Returns whether the breaker opens because of this failure.
        """
        state = self._states.get(worker)
        if state is None:
            return False
        state.failures += 1
        if len(state.clients) < 2:
            state.clients.add(client)
        # Requests that were sent before the breaker opened do not count.
        if state.open and not state.probing:
            return False
        if not state.open and (state.failures < TRIPS_AFTER or self._serves_others(worker)):
            return False
        opens, state.open, state.probing = not state.open, True, False
        state.until_s = self._now_s() + state.rest_s
        state.rest_s = min(2 * state.rest_s, LONGEST_REST_S)
        return opens

    def record_success(self, worker: int, client: str) -> bool:
        """Record that a client's request was served; return whether this closes the breaker."""
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

    def _serves_others(self, worker: int) -> bool:
        """Return whether only one client's requests fail at a worker that serves another."""
        failing, since_s = self._states[worker].clients, self._now_s() - FIRST_REST_S
        return len(failing) == 1 and any(
            at == worker and client not in failing and served_s > since_s
            for (at, client), served_s in self._served_s.items()
        )

    def undecided(self, worker: int) -> None:
        """Record a probe without result, for example because the client disconnected."""
        if worker in self._states:
            self._states[worker].probing = False

    def reset(self, worker: int) -> None:
        """Close the circuit breaker of a worker.

        When a worker becomes available again, it is assumed to be a new process.
        """
        if worker in self._states:
            self._states[worker] = _State()

    def add_worker(self, worker: int) -> None:
        self._states[worker] = _State()

    def probe(self) -> int | None:
        """Return a worker that should be probed now, or None.

        The caller must send a probe to it.
        """
        now_s = self._now_s()
        for worker, state in self._states.items():
            if state.open and not state.probing and state.until_s <= now_s:
                state.probing = True
                return worker
        return None


@dataclass(slots=True)
class _Refused:
    sizes: list[int] = field(default_factory=list)  # smallest refused sizes in tokens, ascending
    clients: set[str] = field(default_factory=set)  # the first two clients of refused requests
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

    A kind is a hash of properties such as model and fields. ``size`` is the number of tokens that a
    request needs. After ``TRIPS_AFTER`` refusals, requests of the kind that are at least as large
    avoid the worker for as long as a circuit breaker's pause. Then a single request of the kind
    tests the worker again. A served request deletes the refusals of requests up to its size. If all
    refused requests were of one client, only its requests avoid the worker, because their content
    may be the cause.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._kinds: dict[int, dict[int, _Refused]] = {}
        self._now_s = now_s

    def record_refusal(self, worker: int, kind: int, size: int, client: str) -> bool:
        """Record that a worker refused a request that another worker served.

        Returns whether requests of this kind begin to avoid the worker.
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
        """Record that the worker served a request of this kind and size."""
        state = self._kinds.get(kind, {}).get(worker)
        if state is not None:
            state.sizes = [one for one in state.sizes if one > size]
            if not state.sizes:
                del self._kinds[kind][worker]

    def avoided(self, kind: int, size: int, client: str) -> Collection[int]:
        """Return the workers to which a request of this kind and size should not be sent.

        After its pause, a worker is tried again.
        """
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
        """Delete all refusals of a worker, because a new process runs at its address."""
        for workers in self._kinds.values():
            workers.pop(worker, None)


class Doubts:
    """The workers that failed their last request, or their last request of some kind.

    The cause may be the worker or the request itself. A doubted worker still gets requests, but
    none that another worker has failed. ``kind`` None stands for all kinds.
    """

    def __init__(self) -> None:
        self._doubts: dict[tuple[int, int | None], None] = {}

    def add_doubt(self, worker: int, kind: int | None) -> None:
        self._doubts[worker, kind] = None
        if len(self._doubts) > MOST_KINDS:
            del self._doubts[next(iter(self._doubts))]

    def clear_doubts(self, worker: int, kind: int) -> None:
        """Record that a worker served a request of a kind, which ends doubts about this kind."""
        self._doubts.pop((worker, None), None)
        self._doubts.pop((worker, kind), None)

    def among(self, workers: Collection[int], kind: int) -> set[int]:
        """Return those of ``workers`` that failed their last request of this kind, or of any."""
        doubts = self._doubts
        return {one for one in workers if (one, None) in doubts or (one, kind) in doubts}
