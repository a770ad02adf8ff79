"""Workers with almost no work while others queue, such as a worker that has just joined."""

from __future__ import annotations

from fairbench.schedulers.routing.fleet import Fleet

# multiple of the limit on requests from which on the chosen worker is taken to queue
QUEUES_FROM = 4


class Filling:
    """A rule that gives a request to an idle worker if the chosen worker queues.

    Algorithm 2 of [DLPM] follows the prefix for as long as the client is in credit there. A worker
    that joins holds no prefix, so it idles until every client's credit elsewhere is used up:
    quantum x clients tokens. Under this rule a worker with fewer than ``below`` requests in flight
    takes the request if the worker that Algorithm 2 chose has ``QUEUES_FROM`` times ``below`` or
    more. The client's credit is respected: only workers where the client is in credit are filled,
    so every credit stays within the bounds of Algorithm 2.

    Args:
        fleet: The live workers and their requests in flight.
        below: The number of requests in flight from which a worker is not idle.
    """

    def __init__(self, fleet: Fleet, below: int) -> None:
        self._fleet = fleet
        self._below = below

    def instead_of(self, worker: int, available: int) -> int:
        """Return the worker used instead of the chosen one, among the ``available`` ones (bits)."""
        if self._fleet.in_flight(worker) < QUEUES_FROM * self._below:
            return worker
        idle = self._fleet.below(self._below) & available
        return self._fleet.least_loaded(idle) if idle else worker
