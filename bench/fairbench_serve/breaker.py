"""The circuit breaker: a worker that fails requests that others serve is avoided for a while.

A refusal (4xx) concerns a kind of requests, not the worker: a model that only other workers have,
or a prompt that is too long for this worker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import inf

TRIPS_AFTER = 3  # failures in succession
FIRST_REST_S = 5.0
LONGEST_REST_S = 60.0
MOST_KINDS = 1024  # kinds of requests of which refusals are kept


@dataclass(slots=True)
class _State:
    failures: int = 0  # failures in succession
    clients: set[str] = field(default_factory=set)  # the first two clients of these failures
    rest_s: float = field(default_factory=lambda: FIRST_REST_S)  # length of the next rest
    until_s: float = -inf  # end of the rest, while the breaker is open
    open: bool = False
    probing: bool = False


class Breakers:
    """The circuit breakers of the workers, on a clock ``now_s`` in seconds. Pure.

    A failure counts only if another worker has served the same request. Otherwise requests that
    fail everywhere could eject every worker. After ``TRIPS_AFTER`` failures in succession the
    worker is open: it gets no requests for 5 s, and twice as long each further time, up to 60 s.
    Then the worker is half open: a single probe request decides. Failures of a single client do not
    open a worker that has served another client in the last 5 s: its requests may be the cause.
    """

    def __init__(self, workers: int, now_s: Callable[[], float]) -> None:
        self._states = {worker: _State() for worker in range(workers)}
        # when a worker last served a client, the latest last
        self._served_s: dict[tuple[int, str], float] = {}
        self._now_s = now_s

    def forget(self, worker: int) -> None:
        """Exclude a worker from all requests for good, including probes."""
        self._states.pop(worker, None)

    def is_open(self, worker: int) -> bool:
        """Return whether a worker gets no ordinary requests."""
        return worker in self._states and self._states[worker].open

    def failed(self, worker: int, client: str) -> bool:
        """Record a failure on a client's request that another worker served.

        Return whether the breaker opens.
        """
        state = self._states.get(worker)
        if state is None:
            return False
        state.failures += 1
        if len(state.clients) < 2:
            state.clients.add(client)
        if state.open and not state.probing:  # the request was sent before the breaker opened
            return False
        if not state.open and (state.failures < TRIPS_AFTER or self._serves_others(worker)):
            return False
        opens, state.open, state.probing = not state.open, True, False
        state.until_s = self._now_s() + state.rest_s
        state.rest_s = min(2 * state.rest_s, LONGEST_REST_S)
        return opens

    def served(self, worker: int, client: str) -> bool:
        """Record a client's served request; return whether this closes the breaker."""
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
        """Return whether only one client's requests fail, and another client's do not."""
        failing, since_s = self._states[worker].clients, self._now_s() - FIRST_REST_S
        return len(failing) == 1 and any(
            at == worker and client not in failing and served_s > since_s
            for (at, client), served_s in self._served_s.items()
        )

    def undecided(self, worker: int) -> None:
        """Record a probe without result, for example because its client left."""
        if worker in self._states:
            self._states[worker].probing = False

    def reset(self, worker: int) -> None:
        """Reset a worker's breaker, because a returning worker is a new process."""
        if worker in self._states:
            self._states[worker] = _State()

    def add(self, worker: int) -> None:
        self._states[worker] = _State()

    def probe(self) -> int | None:
        """Return a worker that is due for a probe; it gets no other request until the result."""
        now_s = self._now_s()
        for worker, state in self._states.items():
            if state.open and not state.probing and state.until_s <= now_s:
                state.probing = True
                return worker
        return None


@dataclass(slots=True)
class _Refused:
    sizes: list[int] = field(default_factory=list)  # the smallest refused sizes, ascending
    clients: set[str] = field(default_factory=set)  # the first two clients of these requests
    rest_s: float = field(default_factory=lambda: FIRST_REST_S)
    until_s: float = -inf

    def covers(self, size: int, client: str) -> bool:
        concerns = len(self.clients) > 1 or client in self.clients
        return concerns and len(self.sizes) == TRIPS_AFTER and size >= self.sizes[-1]

    def rest(self, now_s: float) -> None:
        self.until_s = now_s + self.rest_s
        self.rest_s = min(2 * self.rest_s, LONGEST_REST_S)


class Refusals:
    """The kinds of requests that a worker refuses while other workers serve them. Pure.

    A kind is a hash of properties (model, fields); ``size`` is the number of tokens that a request
    needs. After ``TRIPS_AFTER`` refusals, requests of the kind that are at least as large avoid the
    worker, for as long as with a breaker; then a single request tries the worker again. A served
    request clears the refusals of requests that are not larger. Refusals of a single client concern
    only its own requests, because their content may be the cause.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._kinds: dict[int, dict[int, _Refused]] = {}
        self._now_s = now_s

    def refused(self, worker: int, kind: int, size: int, client: str) -> bool:
        """Record a refusal of a request that another worker served.

        Return whether such requests avoid the worker from now on.
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
        state.rest(self._now_s())
        return True

    def served(self, worker: int, kind: int, size: int) -> None:
        """Record a served request."""
        state = self._kinds.get(kind, {}).get(worker)
        if state is not None:
            state.sizes = [one for one in state.sizes if one > size]
            if not state.sizes:
                del self._kinds[kind][worker]

    def avoided(self, kind: int, size: int, client: str) -> Collection[int]:
        """Return the workers that a request avoids; it tries one whose rest is over."""
        now_s, found = self._now_s(), []
        for worker, state in self._kinds.get(kind, {}).items():
            if not state.covers(size, client):
                continue
            if state.until_s > now_s:
                found.append(worker)
            else:
                state.rest(now_s)
        return found

    def forget(self, worker: int) -> None:
        """Forget a worker's refusals, because another process serves at its address."""
        for workers in self._kinds.values():
            workers.pop(worker, None)


class Doubts:
    """The workers that failed their last request, or their last one of a kind. Pure.

    Nobody knows yet whether the worker or the request was at fault, so such a worker still gets
    requests, but no request that others have failed. ``kind`` is None for any request.
    """

    def __init__(self) -> None:
        self._doubts: dict[tuple[int, int | None], None] = {}

    def add(self, worker: int, kind: int | None) -> None:
        self._doubts[worker, kind] = None
        if len(self._doubts) > MOST_KINDS:
            del self._doubts[next(iter(self._doubts))]

    def clear(self, worker: int, kind: int) -> None:
        """Record that the worker served a request of the kind."""
        self._doubts.pop((worker, None), None)
        self._doubts.pop((worker, kind), None)

    def among(self, workers: Collection[int], kind: int) -> set[int]:
        """Return the doubted ones of the workers."""
        doubts = self._doubts
        return {one for one in workers if (one, None) in doubts or (one, kind) in doubts}
