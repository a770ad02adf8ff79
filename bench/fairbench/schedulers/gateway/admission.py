"""Admission control, which refuses, demotes or reroutes requests that would miss a deadline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from math import inf
from typing import NamedTuple

from sortedcontainers import SortedList

from fairbench.core import CostModel, Request
from fairbench.schedulers.base import Read
from fairbench.schedulers.gateway.orders import Matched
from fairbench.schedulers.gateway.queue import HoldsRequests, Send
from fairbench.schedulers.gateway.registry import REFUSE, AdmissionParams, Ahead
from fairbench.schedulers.output_lengths import MeanAnswers
from fairbench.schedulers.views import FleetView, WorkerLoad


class RequestTotals:
    """A set of requests with counts by client, sorted deadlines and the total prefill time."""

    def __init__(self) -> None:
        self.clients: Counter[str] = Counter()
        self.prefill_s = 0.0
        self._prefills_s: dict[Request, float] = {}
        self._dues_s = SortedList()

    def __len__(self) -> int:
        return len(self._prefills_s)

    def __contains__(self, request: object) -> bool:
        return request in self._prefills_s

    def add_request(self, request: Request, prefill_s: float = 0.0) -> None:
        self._prefills_s[request] = prefill_s
        self.prefill_s += prefill_s
        self.clients[request.client] += 1
        if request.next_deadline_s is not None:
            self._dues_s.add(request.next_deadline_s)

    def remove_request(self, request: Request) -> None:
        prefill_s = self._prefills_s.pop(request)
        # Resetting the sum of an empty set removes rounding errors.
        self.prefill_s = self.prefill_s - prefill_s if self._prefills_s else 0.0
        self.clients[request.client] -= 1
        if not self.clients[request.client]:
            del self.clients[request.client]
        if request.next_deadline_s is not None:
            self._dues_s.remove(request.next_deadline_s)

    def due_before(self, request: Request) -> int:
        """Return how many requests have deadlines no later than the deadline of ``request``.

        For a request without a deadline, return the number of all requests with deadlines.
        """
        due_s = request.next_deadline_s
        return int(self._dues_s.bisect_right(inf if due_s is None else due_s))


NOBODY = RequestTotals()
"""An empty set of queued requests, to which no request may be added."""


class LatencyEstimate(NamedTuple):
    """The estimated times in seconds from now to a request's first and last token."""

    first_s: float
    end_s: float

    def late_by_s(self, request: Request, now_s: float) -> float:
        """Return the seconds by which the request would be late (at most 0 if it is in time)."""
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
    """An estimator of a new request's latency at each worker.

    - The time to the first token is the prefill time of the new request and of all requests that
      are served before it. If the worker is saturated or requests wait in the gateway's queue, the
      new request and each request before it first wait until a running request ends. If r requests
      run, M is the mean output and a decode step takes d seconds, a request ends every M d / r
      seconds.
    - After the first token, each further token takes a decode step. The expected output is the mean
      of the client's finished requests, but at most ``max_new_tokens``. If the client has no
      finished request, the expected output is the mean over all clients, or 1 token if no request
      has finished.

    The parameter ``ahead`` selects the requests that are assumed to be served before the new one.
    Requests in the gateway's queue are divided equally among the workers.

    - ``ahead="all"`` selects all waiting requests, which is correct under FCFS.
    - ``ahead="edf"`` selects the waiting requests whose deadlines are earlier than the new
      request's deadline. All running requests are assumed to have earlier deadlines, too.
    - ``ahead="fair"`` assumes that clients take turns: if the new request's client has n waiting
      requests, n requests of every client are selected. The running requests are assumed to be
      divided equally among the clients.

    If the caches are known, the prefill time excludes cached tokens. Estimates tend to be too
    short, because they ignore HTTP and the prefills of other requests. The estimator never uses the
    true output length.
    """

    def __init__(
        self, costs: CostModel, fleet: FleetView, matched: Matched, ahead: Ahead = "fair"
    ) -> None:
        self._costs = costs
        self._fleet = fleet
        self._matched = matched
        self._ahead = ahead
        # ``_sent`` maps each worker to the ``RequestTotals`` of its unfinished requests.
        self._sent: dict[int, RequestTotals] = {}
        self._at: dict[Request, int | None] = {}
        self._answers = MeanAnswers()

    def estimates(
        self, request: Request, held: RequestTotals = NOBODY
    ) -> dict[int, LatencyEstimate]:
        """Estimate the latency at each worker, given the requests ``held`` in the queue."""
        return {worker: self._estimate(request, worker, held) for worker in self._fleet.workers()}

    def expected_output(self, request: Request) -> float:
        return min(request.max_new_tokens, self._answers.expected(request.client) or 1.0)

    def any_free(self) -> bool:
        """Return whether at least one worker has no waiting request."""
        loads = map(self._fleet.load, self._fleet.workers())
        return any(not _waiting_requests(one) and not one.saturated for one in loads)

    def sent(self, request: Request, worker: int) -> None:
        self.set_worker(request, worker)

    def set_worker(self, request: Request, worker: int | None) -> None:
        self._clear_worker(request)
        self._at[request] = worker
        if worker is None:
            return
        self._sent.setdefault(worker, RequestTotals()).add_request(
            request, self._prefill_s(request)
        )

    def end_sent(self, request: Request, output_tokens: int) -> None:
        """Record the end of a sent request, which produced 0 tokens if no worker served it."""
        self._clear_worker(request)
        if output_tokens:
            self._answers.learn(request.client, output_tokens)

    def _clear_worker(self, request: Request) -> None:
        worker = self._at.pop(request, None)
        if worker is not None:
            self._sent[worker].remove_request(request)

    def _estimate(self, request: Request, worker: int, held: RequestTotals) -> LatencyEstimate:
        load = self._fleet.load(worker)
        step_s = self._costs.decode_step_s(
            _running_requests(load) + 1, load.tokens + request.input_tokens
        )
        ahead = self._before(request, worker, load, held)
        here = self._sent.get(worker, NOBODY)
        first_s = self._prefill_s(request) + ahead * here.prefill_s / max(1, len(here))
        if load.saturated or len(held):
            first_s += (
                (ahead + 1)
                * (self._answers.of_all or 1.0)
                * step_s
                / max(1, _running_requests(load))
            )
        outputs = self.expected_output(request)
        return LatencyEstimate(first_s, first_s + max(0.0, outputs - 1) * step_s)

    def _before(
        self, request: Request, worker: int, load: WorkerLoad, held: RequestTotals
    ) -> float:
        """Return the estimated number of requests that are served before the new request."""
        part = 1 / max(1, len(self._fleet.workers()))
        here, waiting = self._sent.get(worker, NOBODY), _waiting_requests(load) + part * len(held)
        if self._ahead == "all" or not waiting:
            return waiting
        if self._ahead == "edf":
            earlier = here.due_before(request) + part * held.due_before(request)
            return min(waiting, max(0.0, earlier - _running_requests(load)))
        own = here.clients[request.client] + part * held.clients[request.client]
        clients = len({request.client} | here.clients.keys() | held.clients.keys())
        return min(waiting, clients * max(0.0, own - _running_requests(load) / clients))

    def _prefill_s(self, request: Request) -> float:
        cached = min(self._matched(request), request.input_tokens - 1)
        return self._costs.prefill_s(cached, request.input_tokens - cached)


def _running_requests(load: WorkerLoad) -> int:
    """Return a worker's running requests or, if their number is unknown, its requests in flight."""
    return load.in_flight if load.running is None else load.running


def _waiting_requests(load: WorkerLoad) -> int:
    """Return the number of waiting requests, including requests sent since the last report."""
    return max(load.queued or 0, load.in_flight - _running_requests(load))


class AdmissionControl:
    """A queue that refuses or demotes requests that would miss their deadlines.

    A request enters the inner ``queue`` if it has no deadline, or if the ``Estimator`` expects it
    to be in time at some worker. A request that would be late is refused or, with
    ``policy=demote``, demoted. A demoted request waits for at most ``aging_s`` seconds, until the
    inner queue is empty and at least one worker has no waiting request. A request's latency is
    estimated only once, on arrival, so an accepted request may still be late.
    """

    def __init__(self, queue: HoldsRequests, estimator: Estimator, params: AdmissionParams) -> None:
        self.queue = queue
        self.params = params
        self._estimator = estimator
        self._held = RequestTotals()
        # ``_demoted`` maps each demoted request to the time (s) at which its wait must end.
        self._demoted: dict[Request, float] = {}
        self._late_s: float | None = None

    def __len__(self) -> int:
        return len(self._held) + len(self._demoted)

    def late_by_s(self, request: Request, now_s: float) -> float:
        """Return the seconds by which a request would be late at the best worker."""
        if request.next_deadline_s is None:
            return 0.0
        return min(self._late_at(request, now_s, self._held).values(), default=0.0)

    def rerouted(self, request: Request, worker: int, now_s: float) -> int:
        """Return the final worker of a request that the router sent to ``worker``."""
        if request.next_deadline_s is None:
            return worker
        late = self._late_at(request, now_s, NOBODY)
        best = min(late, key=lambda one: (late[one], one), default=worker)
        return best if late.get(worker, 0.0) > 0 >= late.get(best, 1.0) else worker

    def enter(self, request: Request, now_s: float) -> bool:
        self._late_s = None
        late_s = self.late_by_s(request, now_s)
        if late_s <= 0:
            return self._pass_on(request, now_s)
        if self.params.policy == REFUSE:
            self._late_s = late_s
            return False
        request.demoted = True
        self._demoted[request] = now_s + self.params.aging_s
        return True

    def retry_after_s(self) -> float | None:
        """Return the estimated lateness of the last refused request, in seconds."""
        return self._late_s

    def shed(self, now_s: float) -> Collection[Request]:
        gone = self.queue.shed(now_s)
        for request in gone:
            self._held.remove_request(request)
        return gone

    def release(self, now_s: float, send: Send) -> None:
        def sent(request: Request, worker: int) -> None:
            self._held.remove_request(request)
            self._estimator.sent(request, worker)
            send(request, worker)

        self.queue.release(now_s, sent)
        while (request := next(iter(self._demoted), None)) is not None:
            is_idle = not self._held and self._estimator.any_free()
            if not (self._demoted[request] <= now_s or is_idle):
                return
            del self._demoted[request]
            if not self._pass_on(request, now_s):
                # The request was accepted at its arrival, so try again later; do not refuse it.
                self._demoted[request] = now_s + self.params.aging_s
                return
            self.queue.release(now_s, sent)

    def wake_s(self, now_s: float) -> float | None:
        times_s = [self.queue.wake_s(now_s), *list(self._demoted.values())[:1]]
        return min((time_s for time_s in times_s if time_s is not None), default=None)

    def moved(self, request: Request, worker: int | None) -> None:
        self._estimator.set_worker(request, worker)
        self.queue.moved(request, worker)

    def finish(
        self,
        request: Request,
        output_tokens: int,
        now_s: float | None = None,
        read: Read | None = None,
    ) -> None:
        self._estimator.end_sent(request, output_tokens)
        self.queue.finish(request, output_tokens, now_s, read)

    def withdraw(self, request: Request) -> None:
        if request in self._demoted:
            del self._demoted[request]
        else:
            self._held.remove_request(request)
            self.queue.withdraw(request)

    def _pass_on(self, request: Request, now_s: float) -> bool:
        entered = self.queue.enter(request, now_s)
        if entered:
            self._held.add_request(request)
        return entered

    def _late_at(self, request: Request, now_s: float, held: RequestTotals) -> dict[int, float]:
        found = self._estimator.estimates(request, held)
        margin = self.params.margin
        return {
            worker: one._replace(first_s=margin * one.first_s, end_s=margin * one.end_s).late_by_s(
                request, now_s
            )
            for worker, one in found.items()
        }
