"""Expected answer times of requests, from the timing profile and the present load."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import NamedTuple

from sortedcontainers import SortedList

from fairbench.core import CostModel, Request
from fairbench.schedulers.charging.dispatch import MeanAnswers
from fairbench.schedulers.gateway.orders import Matched
from fairbench.schedulers.gateway.registry import Ahead
from fairbench.schedulers.views import FleetView, WorkerLoad


class RequestTotals:
    """A set of requests with counts by client, deadlines and the sum of prefill times."""

    def __init__(self) -> None:
        self.clients: Counter[str] = Counter()  # number of requests of each client that has some
        self.prefill_s = 0.0
        self._prefills_s: dict[Request, float] = {}
        self._dues_s = SortedList()

    def __len__(self) -> int:
        return len(self._prefills_s)

    def __contains__(self, request: object) -> bool:
        return request in self._prefills_s

    def add(self, request: Request, prefill_s: float = 0.0) -> None:
        """Add a request, which must not be in the totals yet."""
        self._prefills_s[request] = prefill_s
        self.prefill_s += prefill_s
        self.clients[request.client] += 1
        if request.next_deadline_s is not None:
            self._dues_s.add(request.next_deadline_s)

    def remove(self, request: Request) -> None:
        """Remove a request. Raises KeyError if it is not in the totals."""
        prefill_s = self._prefills_s.pop(request)
        # Removing the last request also removes the rounding error of the sum.
        self.prefill_s = self.prefill_s - prefill_s if self._prefills_s else 0.0
        self.clients[request.client] -= 1
        if not self.clients[request.client]:
            del self.clients[request.client]
        if request.next_deadline_s is not None:
            self._dues_s.remove(request.next_deadline_s)

    def due_before(self, request: Request) -> int:
        """Return how many are due no later than this request; all if it has no deadline."""
        due_s = request.next_deadline_s
        return int(self._dues_s.bisect_right(inf if due_s is None else due_s))


NOBODY = RequestTotals()
"""An empty set of queued requests. Callers must not add to it."""


class Estimate(NamedTuple):
    """Seconds from now until the first token of a request, and until its last."""

    first_s: float
    end_s: float

    def late_by_s(self, request: Request, now_s: float) -> float:
        """Return by how much the tighter deadline would be missed; 0 or less means in time."""
        late = [
            now_s + taken_s - due_s
            for taken_s, due_s in (
                (self.first_s, request.first_token_by_s),
                (self.end_s, request.deadline_s),
            )
            if due_s is not None
        ]
        return max(late, default=0.0)


class Estimator:
    """An estimator of the time that one more request would take at each worker under its load.

    The estimate assumes q requests ahead, r running requests, and a decode step of d seconds with
    the new request in the batch. M is the mean output of finished requests of all clients, and N
    that of its own client.

    - The first token comes after its prefill and q mean prefills. If the worker reports saturation
      or other requests are queued, it also comes after the ends of q + 1 running requests, one
      every M d / r seconds.
    - The last token comes N - 1 steps later, with N at most ``max_new_tokens``. Until a request of
      its client has finished, N is M, which is 1 at first.

    q counts the requests that wait at the worker, and an equal part of those queued before the
    workers:

    - ``ahead="all"`` counts all of them, as under fcfs.
    - ``edf`` counts requests due earlier, and assumes that the running requests are among them.
    - ``fair`` counts the requests that go first if clients take turns: as many of each client as of
      its own, whose share of the running requests is running.

    Prefill excludes cached tokens if they are known. Prefills of other requests during its decode,
    and HTTP, are ignored, so that estimates tend to be too short. The true length of an answer is
    never used.
    """

    def __init__(
        self, costs: CostModel, fleet: FleetView, matched: Matched, ahead: Ahead = "fair"
    ) -> None:
        self._costs = costs
        self._fleet = fleet
        self._matched = matched
        self._ahead = ahead
        self._sent: dict[int, RequestTotals] = {}  # worker -> totals
        self._at: dict[Request, int | None] = {}
        self._answers = MeanAnswers()

    def of(self, request: Request, held: RequestTotals = NOBODY) -> dict[int, Estimate]:
        """Return the estimate for every available worker; ``held`` requests are queued before."""
        return {worker: self._one(request, worker, held) for worker in self._fleet.workers()}

    def expected_output(self, request: Request) -> float:
        return min(request.max_new_tokens, self._answers.expected(request.client) or 1.0)

    def any_free(self) -> bool:
        """Return whether some worker has none of the requests sent to it waiting."""
        loads = map(self._fleet.load, self._fleet.workers())
        return any(not _waiting(one) and not one.saturated for one in loads)

    # Events.

    def sent(self, request: Request, worker: int) -> None:
        self.moved(request, worker)

    def moved(self, request: Request, worker: int | None) -> None:
        self._leave(request)
        self._at[request] = worker
        if worker is None:
            return
        self._sent.setdefault(worker, RequestTotals()).add(request, self._prefill_s(request))

    def over(self, request: Request, output_tokens: int) -> None:
        """Record the end of a sent request; a request without output was not served."""
        self._leave(request)
        if output_tokens:
            self._answers.finished(request.client, output_tokens)

    def _leave(self, request: Request) -> None:
        worker = self._at.pop(request, None)
        if worker is not None:
            self._sent[worker].remove(request)

    def _one(self, request: Request, worker: int, held: RequestTotals) -> Estimate:
        load = self._fleet.load(worker)
        step_s = self._costs.decode_step_s(_running(load) + 1, load.tokens + request.input_tokens)
        ahead = self._before(request, worker, load, held)
        here = self._sent.get(worker, NOBODY)
        first_s = self._prefill_s(request) + ahead * here.prefill_s / max(1, len(here))
        if load.saturated or len(held):
            first_s += (ahead + 1) * (self._answers.of_all or 1.0) * step_s / max(1, _running(load))
        outputs = self.expected_output(request)
        return Estimate(first_s, first_s + max(0.0, outputs - 1) * step_s)

    def _before(
        self, request: Request, worker: int, load: WorkerLoad, held: RequestTotals
    ) -> float:
        """Return how many requests will be served before this request."""
        part = 1 / max(1, len(self._fleet.workers()))
        here, waiting = self._sent.get(worker, NOBODY), _waiting(load) + part * len(held)
        if self._ahead == "all" or not waiting:
            return waiting
        if self._ahead == "edf":
            earlier = here.due_before(request) + part * held.due_before(request)
            return min(waiting, max(0.0, earlier - _running(load)))
        own = here.clients[request.client] + part * held.clients[request.client]
        clients = len({request.client} | here.clients.keys() | held.clients.keys())
        return min(waiting, clients * max(0.0, own - _running(load) / clients))

    def _prefill_s(self, request: Request) -> float:
        cached = min(self._matched(request), request.input_tokens - 1)
        return self._costs.prefill_s(cached, request.input_tokens - cached)


def _running(load: WorkerLoad) -> int:
    """Return a worker's running requests, or all in flight if it does not report them."""
    return load.in_flight if load.running is None else load.running


def _waiting(load: WorkerLoad) -> int:
    """Return a worker's waiting requests, including those sent since its report."""
    return max(load.queued or 0, load.in_flight - _running(load))
