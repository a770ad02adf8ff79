"""A router's live workers, their requests in flight, and the rotation that breaks ties.

A set of workers is an integer with one bit per worker, so that set operations are fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fairbench.core import Request
from fairbench.errors import RunFailed


def as_bits(workers: Iterable[int]) -> int:
    """Return a set of workers as the bits of an integer."""
    bits = 0
    for worker in workers:
        bits |= 1 << worker
    return bits


def lowest(bits: int) -> int:
    """Return the lowest worker number in the non-empty set ``bits``."""
    return (bits & -bits).bit_length() - 1


def members(bits: int) -> Iterator[int]:
    """Yield the workers in a set, in ascending order."""
    while bits:
        worker = lowest(bits)
        yield worker
        bits ^= 1 << worker


class Fleet:
    """The live workers in ascending order, and the number of requests in flight at each.

    When a worker leaves, its requests are no longer counted. ``end_request`` returns False for
    requests of a worker that has left, even if the worker has joined again. Routing requires at
    least one live worker. ``everyone`` is the set of all live workers, as bits.
    """

    def __init__(self, workers: int) -> None:
        self.workers = list(range(workers))
        self.everyone = as_bits(self.workers)
        self._in_flight: dict[int, int] = dict.fromkeys(self.workers, 0)
        # ``_with`` maps a number of requests in flight to the workers with that many requests in
        # flight.
        self._with: dict[int, int] = {0: self.everyone}
        self._places: dict[int, int] = {}
        self._last_turn = -1

    def __contains__(self, worker: int) -> bool:
        return worker in self._in_flight

    def unfinished_at(self, worker: int) -> int:
        """Return the number of unfinished requests at a live worker (s_w in [DLPM] Alg. 2)."""
        return self._in_flight[worker]

    @property
    def idle_workers(self) -> int:
        """The set of workers that have no requests in flight, as a bit mask."""
        return self._with.get(0, 0)

    def less_loaded_than(self, requests: int) -> int:
        """Return a bit mask of the workers that have fewer than ``requests`` requests in flight."""
        found = 0
        for number, workers in self._with.items():
            if number < requests:
                found |= workers
        return found

    def add_worker(self, worker: int) -> None:
        """Add a worker that has no requests in flight.

        If the worker is already live, its requests in flight are removed, as after a restart.
        """
        self.remove_worker(worker)
        self.workers = sorted([*self.workers, worker])
        self.everyone |= 1 << worker
        self._in_flight[worker] = 0
        self._with[0] = self.idle_workers | 1 << worker

    def remove_worker(self, worker: int) -> None:
        """Remove a live worker and its requests in flight."""
        if worker in self:
            in_flight = self._in_flight.pop(worker)
            self._with[in_flight] ^= 1 << worker
            if not self._with[in_flight]:
                del self._with[in_flight]
            self.workers.remove(worker)
            self.everyone ^= 1 << worker
            self._places = {r: w for r, w in self._places.items() if w != worker}

    def dispatch(self, request: Request, worker: int) -> None:
        self._places[request.request_id] = worker
        self._recount(worker, 1)

    def end_request(self, request: Request, worker: int) -> bool:
        """Remove a request from a worker; return False if it is not in flight at this worker."""
        if self._places.get(request.request_id) != worker:
            return False
        del self._places[request.request_id]
        self._recount(worker, -1)
        return True

    def least_loaded(self, candidates: int) -> int:
        """Return the candidate with the fewest requests in flight; ties rotate.

        ``candidates`` are the workers to choose from, as bits. The time of ``least_loaded`` depends
        on the number of different loads, not on the number of workers. Precondition: at least one
        of the candidate workers is live.
        """
        for number in sorted(self._with):
            if tied := self._with[number] & candidates:
                return self.in_turn(tied)
        raise RunFailed("the router has no live worker")

    def cheapest(self, costs: Mapping[int, float]) -> int:
        """Return the worker with the lowest cost; ``costs`` lists workers in ascending order.

        Ties rotate: the first tied worker after the winner of the last tie is chosen. Without
        rotation, worker 0 would get all requests of an idle cluster. Only ties advance the
        rotation; otherwise, one worker could win every tie.
        """
        least = min(costs.values())
        return self.in_turn(as_bits(worker for worker, cost in costs.items() if cost == least))

    def in_turn(self, tied: int) -> int:
        """Return the next worker of the set ``tied`` in the rotation (see ``cheapest``)."""
        if not tied & (tied - 1):
            return lowest(tied)
        after = self._last_turn + 1
        self._last_turn = lowest(tied >> after << after or tied)
        return self._last_turn

    def _recount(self, worker: int, more: int) -> None:
        before, bit, those = self._in_flight[worker], 1 << worker, self._with
        those[before] ^= bit
        if not those[before]:
            del those[before]
        self._in_flight[worker] = now = before + more
        those[now] = those[now] | bit if now in those else bit


# A worker is overloaded if its requests in flight are at least ``QUEUES_FROM`` times the parameter
# ``below`` of ``Filling``.
QUEUES_FROM = 4


class Filling:
    """A rule that moves a request from an overloaded worker to a nearly idle worker.

    Algorithm 2 of [DLPM] sends a client's requests to the worker with their prefix as long as the
    client has positive credit at this worker. A worker that joins has no prefix cached, so it would
    idle until clients have used up their credit at other workers. If the chosen worker has at least
    ``QUEUES_FROM`` times ``below`` requests in flight, the request moves to a worker with fewer
    than ``below`` requests. The client must have positive credit at the new worker, so every credit
    stays within the bounds of [DLPM] Algorithm 2.

    Args:
        fleet: The live workers and their requests in flight.
        below: A worker with fewer than this number of requests in flight counts as idle.
    """

    def __init__(self, fleet: Fleet, below: int) -> None:
        self._fleet = fleet
        self._below = below

    def instead_of(self, worker: int, available: int) -> int:
        """Return an idle worker of the set ``available``, or ``worker`` if the set has none."""
        if self._fleet.unfinished_at(worker) < QUEUES_FROM * self._below:
            return worker
        idle = self._fleet.less_loaded_than(self._below) & available
        return self._fleet.least_loaded(idle) if idle else worker
