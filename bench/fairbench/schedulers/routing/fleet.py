"""The workers of a router, their requests in flight, and a fair choice among equal workers."""

from __future__ import annotations

from collections.abc import Mapping

from fairbench.core import Request
from fairbench.errors import RunFailed
from fairbench.schedulers.worker_sets import as_bits, lowest


class Fleet:
    """The live workers in ascending order, and the number of requests in flight at each.

    A worker that leaves takes its requests out of the count: if one of them finishes later, it is
    recognised as stale, even if the worker has returned meanwhile. Routing needs at least one live
    worker. ``everyone`` is the set of live workers, as bits.
    """

    def __init__(self, workers: int) -> None:
        self.workers = list(range(workers))
        self.everyone = as_bits(self.workers)
        self._in_flight: dict[int, int] = dict.fromkeys(self.workers, 0)
        self._with: dict[int, int] = {0: self.everyone}  # number in flight -> workers
        self._places: dict[int, int] = {}  # request id -> worker
        self._last_turn = -1

    def __contains__(self, worker: int) -> bool:
        return worker in self._in_flight

    def in_flight(self, worker: int) -> int:
        """Return the unfinished requests at a live worker (s_w of [DLPM] Alg. 2)."""
        return self._in_flight[worker]

    @property
    def idle(self) -> int:
        """The workers without requests in flight, as bits."""
        return self._with.get(0, 0)

    def below(self, requests: int) -> int:
        """Return the workers with fewer requests in flight than ``requests``, as bits."""
        found = 0
        for number, workers in self._with.items():
            if number < requests:
                found |= workers
        return found

    def join(self, worker: int) -> None:
        """Add a worker without requests in flight. A worker that never left counts as restarted."""
        self.leave(worker)
        self.workers = sorted([*self.workers, worker])
        self.everyone |= 1 << worker
        self._in_flight[worker] = 0
        self._with[0] = self.idle | 1 << worker

    def leave(self, worker: int) -> None:
        """Remove a worker and forget its requests; harmless for an unknown worker."""
        if worker in self:
            in_flight = self._in_flight.pop(worker)
            self._with[in_flight] ^= 1 << worker
            if not self._with[in_flight]:
                del self._with[in_flight]
            self.workers.remove(worker)
            self.everyone ^= 1 << worker
            self._places = {r: w for r, w in self._places.items() if w != worker}

    def dispatch(self, request: Request, worker: int) -> None:
        """Count one more request in flight at the worker."""
        self._places[request.request_id] = worker
        self._recount(worker, 1)

    def finish(self, request: Request, worker: int) -> bool:
        """Count one request less in flight. Returns False for an unknown request."""
        if self._places.get(request.request_id) != worker:
            return False
        del self._places[request.request_id]
        self._recount(worker, -1)
        return True

    def least_loaded(self, candidates: int) -> int:
        """Return the candidate with the fewest requests in flight; ties rotate.

        ``candidates`` are workers as bits. The time grows with the number of different counts in
        flight, not with the number of workers. Precondition: some candidates are live.
        """
        for number in sorted(self._with):
            if tied := self._with[number] & candidates:
                return self.in_turn(tied)
        raise RunFailed("the router has no available worker")

    def cheapest(self, costs: Mapping[int, float]) -> int:
        """Return the worker with the lowest cost; ``costs`` lists workers in ascending order.

        Ties rotate: the next tied worker after the winner of the last tie is returned. "Lowest
        index" would load worker 0 whenever the cluster is idle. Choices without a tie do not count
        as a turn, because otherwise the same worker could win every tie.
        """
        least = min(costs.values())
        return self.in_turn(as_bits(worker for worker, cost in costs.items() if cost == least))

    def in_turn(self, tied: int) -> int:
        """Return one of several equally good workers (bits), in rotation; see ``cheapest``."""
        if not tied & (tied - 1):
            return lowest(tied)
        after = self._last_turn + 1
        self._last_turn = lowest(tied >> after << after or tied)
        return self._last_turn

    def _recount(self, worker: int, more: int) -> None:
        """Add ``more`` to the requests in flight at a live worker."""
        before, bit, those = self._in_flight[worker], 1 << worker, self._with
        those[before] ^= bit
        if not those[before]:
            del those[before]
        self._in_flight[worker] = now = before + more
        those[now] = those[now] | bit if now in those else bit
