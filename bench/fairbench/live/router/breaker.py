"""The circuit breaker: a worker that fails requests that others serve is avoided for a while."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

TRIPS_AFTER = 3  # failures in succession
FIRST_REST_S = 5.0
LONGEST_REST_S = 60.0


@dataclass(slots=True)
class _State:
    failures: int = 0  # failures in succession
    rest_s: float = field(default_factory=lambda: FIRST_REST_S)  # length of the next rest
    until_s: float = -inf  # end of the rest, while the breaker is open
    open: bool = False
    probing: bool = False


class Breakers:
    """The circuit breakers of the workers, on a clock ``now_s`` in seconds. Pure.

    A failure counts only if another worker has served the same request. Otherwise requests that
    fail everywhere could eject every worker. After ``TRIPS_AFTER`` failures in succession the
    worker is open: it gets no requests for 5 s, and twice as long each further time, up to 60 s.
    Then the worker is half open: a single probe request decides.
    """

    def __init__(self, workers: int, now_s: Callable[[], float]) -> None:
        self._states = {worker: _State() for worker in range(workers)}
        self._now_s = now_s

    def forget(self, worker: int) -> None:
        """Exclude a worker from all requests for good, including probes."""
        self._states.pop(worker, None)

    def is_open(self, worker: int) -> bool:
        """Return whether a worker gets no ordinary requests."""
        return worker in self._states and self._states[worker].open

    def failed(self, worker: int) -> bool:
        """Record a failure on a request that another worker served.

        Return whether the breaker opens.
        """
        state = self._states.get(worker)
        if state is None:
            return False
        state.failures += 1
        if state.open and not state.probing:  # the request was sent before the breaker opened
            return False
        if state.failures < TRIPS_AFTER and not state.open:
            return False
        opens, state.open, state.probing = not state.open, True, False
        state.until_s = self._now_s() + state.rest_s
        state.rest_s = min(2 * state.rest_s, LONGEST_REST_S)
        return opens

    def served(self, worker: int) -> bool:
        """Record a served request; return whether this closes the breaker."""
        state = self._states.get(worker)
        if state is None:
            return False
        closes = state.open and state.probing
        if closes or not state.open:
            self._states[worker] = _State()
        return closes

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
