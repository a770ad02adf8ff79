"""The workers a router can choose from, what is in flight there, and a fair choice among equals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairbench.core import Request


class Fleet:
    """The live workers in ascending order, and the number of requests in flight at each.

    A worker that leaves takes its requests out of the count: a later finish of one of them is
    recognised as stale, even when the worker has come back meanwhile. Whoever routes needs at
    least one live worker.
    """

    def __init__(self, workers: int) -> None:
        self.workers = list(range(workers))
        self._in_flight: dict[int, int] = dict.fromkeys(self.workers, 0)
        self._places: dict[int, int] = {}  # request id -> worker
        self._last_turn = -1

    def __contains__(self, worker: int) -> bool:
        return worker in self._in_flight

    def in_flight(self, worker: int) -> int:
        """Requests dispatched to a live worker that have not finished (s_w of [DLPM] Alg. 2)."""
        return self._in_flight[worker]

    def join(self, worker: int) -> None:
        """Add a worker with nothing in flight. One that never left is taken to have restarted."""
        self.leave(worker)
        self.workers = sorted([*self.workers, worker])
        self._in_flight[worker] = 0

    def leave(self, worker: int) -> None:
        """Take a worker out and forget its requests. Harmless for one that is not there."""
        if self._in_flight.pop(worker, None) is not None:
            self.workers.remove(worker)
            self._places = {r: w for r, w in self._places.items() if w != worker}

    def dispatch(self, request: Request, worker: int) -> None:
        """One more in flight."""
        self._places[request.request_id] = worker
        self._in_flight[worker] += 1

    def finish(self, request: Request, worker: int) -> bool:
        """One less in flight. False, and nothing happens, if the request was not there."""
        if self._places.get(request.request_id) != worker:
            return False
        del self._places[request.request_id]
        self._in_flight[worker] -= 1
        return True

    def least_loaded(self, candidates: Iterable[int]) -> int:
        """The candidate with the fewest requests in flight, ties in rotation."""
        return self.cheapest({worker: self._in_flight[worker] for worker in candidates})

    def cheapest(self, costs: Mapping[int, float]) -> int:
        """The worker of lowest cost; ``costs`` lists workers in ascending order.

        Ties go round: to the next tied worker after the one that won the last tie. "Lowest index"
        would load worker 0 whenever the cluster is idle. Choices without a tie take no turn, or
        they could make the same worker win every tie.
        """
        lowest = min(costs.values())
        tied = [worker for worker, cost in costs.items() if cost == lowest]
        if len(tied) == 1:
            return tied[0]
        self._last_turn = next((w for w in tied if w > self._last_turn), tied[0])
        return self._last_turn
