"""When a request would be answered, estimated from the timing profile and what is under way."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from fairbench.core import CostModel, Request
from fairbench.schedulers.accounts.forgotten import MAX_CLIENTS
from fairbench.schedulers.gateway.admission.lot import NOBODY, Lot
from fairbench.schedulers.gateway.ordering.order import Matched
from fairbench.schedulers.views import FleetView, WorkerLoad

Ahead: TypeAlias = Literal["fair", "edf", "all"]


class Estimate(NamedTuple):
    """Seconds from now until the first token of a request, and until its last."""

    first_s: float
    end_s: float

    def late_by_s(self, request: Request, now_s: float) -> float:
        """By how much it would miss the tighter of its deadlines; not above 0: in time."""
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
    """What is under way at each worker, and how long one request more would take there.

    With q requests ahead of it, r running ones, a decode step of d seconds with it in the batch, M
    tokens that a finished request has made on average, of any client, and N of its own client:

    - the first token comes after its prefill and q average ones, and, if the worker says that it is
      saturated or others are held, after q + 1 of the running requests are over, one every M d / r;
    - the last one N - 1 steps later, N being at most ``max_new_tokens``. Where nothing of its
      client is over yet, N is M, and that is 1 at first.

    q is, of those that wait there, and by equal parts of those that are held before the workers:
    with ``ahead="all"`` everyone, as under fcfs; with ``edf`` those that are due before it, the
    running ones taken to be such; with ``fair`` those that go before it where clients take turns:
    as many of each as of its own client, whose share of the running ones runs. Prefill leaves out
    what is cached, where somebody knows. Prefills of others while it decodes, and HTTP, are left
    out: where this is wrong, it is rather too short. It never asks how long an answer will be.
    """

    def __init__(
        self, costs: CostModel, fleet: FleetView, matched: Matched, ahead: Ahead = "fair"
    ) -> None:
        self._costs = costs
        self._fleet = fleet
        self._matched = matched
        self._ahead = ahead
        self._sent: dict[int, Lot] = {}  # by worker
        self._at: dict[Request, int | None] = {}
        self._outputs: dict[str, tuple[int, int]] = {}  # of each client: requests, tokens
        self._all = (0, 0)

    def of(self, request: Request, held: Lot = NOBODY) -> dict[int, Estimate]:
        """At every worker that is up, if ``held`` are held before them."""
        return {worker: self._one(request, worker, held) for worker in self._fleet.workers()}

    def expected_output(self, request: Request) -> float:
        """Tokens that it is taken to make."""
        known = self._outputs.get(request.client, self._all)
        return min(request.max_new_tokens, _mean(known))

    def any_free(self) -> bool:
        """Whether at some worker nothing waits of all that went there."""
        loads = map(self._fleet.load, self._fleet.workers())
        return any(not _waiting(one) and not one.saturated for one in loads)

    # What happens.

    def sent(self, request: Request, worker: int) -> None:
        """The request has gone to that worker."""
        self.moved(request, worker)

    def moved(self, request: Request, worker: int | None) -> None:
        """It is there now, or at no worker any more."""
        self._leave(request)
        self._at[request] = worker
        if worker is None:
            return
        self._sent.setdefault(worker, Lot()).add(request, self._prefill_s(request))

    def over(self, request: Request, output_tokens: int) -> None:
        """A request that was sent is over; one without output was not served."""
        self._leave(request)
        if output_tokens:
            requests, tokens = self._outputs.pop(request.client, (0, 0))
            self._outputs[request.client] = requests + 1, tokens + output_tokens
            if len(self._outputs) > MAX_CLIENTS:  # the one unheard of for longest is forgotten
                del self._outputs[next(iter(self._outputs))]
            self._all = self._all[0] + 1, self._all[1] + output_tokens

    def _leave(self, request: Request) -> None:
        worker = self._at.pop(request, None)
        if worker is not None:
            self._sent[worker].remove(request)

    def _one(self, request: Request, worker: int, held: Lot) -> Estimate:
        load = self._fleet.load(worker)
        step_s = self._costs.decode_step_s(_running(load) + 1, load.tokens + request.input_tokens)
        ahead = self._before(request, worker, load, held)
        here = self._sent.get(worker, NOBODY)
        first_s = self._prefill_s(request) + ahead * here.prefill_s / max(1, len(here))
        if load.saturated or len(held):
            first_s += (ahead + 1) * _mean(self._all) * step_s / max(1, _running(load))
        outputs = self.expected_output(request)
        return Estimate(first_s, first_s + max(0.0, outputs - 1) * step_s)

    def _before(self, request: Request, worker: int, load: WorkerLoad, held: Lot) -> float:
        """How many requests go before it."""
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
    """Requests that run at a worker; of one that does not say all that went there."""
    return load.in_flight if load.running is None else load.running


def _waiting(load: WorkerLoad) -> int:
    """Requests that wait at a worker, with those that it has got since it said so."""
    return max(load.queued or 0, load.in_flight - _running(load))


def _mean(known: tuple[int, int]) -> float:
    """Tokens a request, of so many requests and tokens; 1 before the first."""
    requests, tokens = known
    return tokens / requests if requests else 1.0
