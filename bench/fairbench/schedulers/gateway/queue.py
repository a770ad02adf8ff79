"""The gateway's queue before the workers, in which a scheduler orders the requests."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from heapq import heappop, heappush
from itertools import count, islice
from typing import Generic, Protocol, TypeAlias, TypeVar

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, Read, Router, Selection, WaitingView
from fairbench.schedulers.drive import Tried, drive
from fairbench.schedulers.gateway.client_limits import ClientLimits
from fairbench.schedulers.gateway.orders import Order
from fairbench.schedulers.gateway.policy import FlowPolicy
from fairbench.schedulers.gateway.registry import GatewayParams
from fairbench.schedulers.gateway.rerouting import Rerouting
from fairbench.schedulers.gateway.saturation import AlwaysRoom, Detector
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.output_lengths import BATCH, MAX_CLIENTS, MeanAnswers
from fairbench.schedulers.peers import Changes, Heard, SharedCounters, Sums, Totals
from fairbench.schedulers.views import ListScan, QueueView


class OutputsAhead:
    """A rule that charges a client's mean output in advance and corrects the charge at the end.

    If outputs were charged only at the end, the queue would send all requests of a client before
    its first output ends. Precondition: the scheduler declares ``refunds_tokens``.
    """

    def __init__(self, scheduler: LocalScheduler) -> None:
        self._scheduler = scheduler
        self._answers = MeanAnswers()
        # ``_charged`` maps each unfinished request to the output tokens charged in advance.
        self._charged: dict[Request, int] = {}

    def charge_ahead(self, request: Request) -> None:
        """Charge the expected output of a request that is sent for the first time."""
        mean = round(self._answers.expected(request.client))
        self._charged[request] = tokens = min(mean, request.max_new_tokens)
        if tokens:
            self._scheduler.on_tokens(request.client, tokens)

    def charge_rest(self, request: Request, output_tokens: int) -> None:
        """Correct the charge when a request ends, by a further charge or a refund."""
        more = output_tokens - self._charged.pop(request)
        if more:
            self._scheduler.on_tokens(request.client, more)
        if output_tokens:
            self._answers.learn(request.client, output_tokens)

    def forget(self, client: str) -> None:
        self._answers.forget(client)


class IdleClients:
    """A record of idle clients, which keeps at most ``MAX_CLIENTS`` clients."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()
        # ``_idle`` holds the idle clients in the order in which they became idle.
        self._idle: dict[str, None] = {}

    def begin_request(self, client: str) -> None:
        self._requests[client] += 1
        self._idle.pop(client, None)

    def end_request(self, client: str) -> Collection[str]:
        """Record the end of a request; return idle clients whose state should be deleted."""
        self._requests[client] -= 1
        if self._requests[client] > 0:
            return ()
        del self._requests[client]
        self._idle[client] = None
        if len(self._idle) <= MAX_CLIENTS:
            return ()
        gone = list(islice(self._idle, BATCH))
        for one in gone:
            del self._idle[one]
        return gone


class FlowView(QueueView):
    """A ``QueueView`` that sorts the requests of each client (a flow) by ``order``.

    A request's cached tokens are counted at the worker with the longest cached prefix.
    ``match_order`` sorts the requests of all flows by cached tokens and, unlike an engine, does not
    put equal prompts last.
    """

    def __init__(self, order: Order) -> None:
        super().__init__()
        self._order = order

    def oldest(self, client: str) -> Request:
        return self._order.first_of(self._of_client[client])

    def queue_order(self) -> ListScan:
        return ListScan(list(self._order.ordered(self._requests)), self._requests)

    def match_order(self, *, refresh: bool = True) -> ListScan:
        if not refresh:
            return self.queue_order()
        by_match = sorted(self._requests, key=lambda request: -self.matched_tokens(request))
        return ListScan(by_match, self._requests)

    def matched_tokens(self, request: Request) -> int:
        return min(self._order.matched(request), request.input_tokens - 1)


Send: TypeAlias = Callable[[Request, int], None]
"""A function that sends a request to the worker with the given number."""


class InOrder(FCFS):
    """A policy in order of arrival that skips requests which cannot be sent now."""

    name = "in-order"

    def select(self, view: WaitingView, now_s: float) -> Selection:
        waiting = view.queue_order()
        while (request := next(waiting, None)) is not None:
            yield request


class HoldsRequests(Protocol):
    """The interface of a queue in front of the workers, whose host is a simulator or a router.

    The host calls ``shed`` and then ``release`` after every event, and at the time that ``wake_s``
    returns.
    """

    def enter(self, request: Request, now_s: float) -> bool:
        """Add an arriving request; return False if the request is refused."""

    def shed(self, now_s: float) -> Collection[Request]:
        """Remove and return requests that must not wait longer; the caller refuses them."""
        return ()

    def release(self, now_s: float, send: Send) -> None:
        """Call ``send`` for each request that may be sent to a worker now, in order."""

    def wake_s(self, now_s: float) -> float | None:
        """Return the time (s) at which to call ``release`` even without an event, or None."""

    def moved(self, request: Request, worker: int | None) -> None:
        """Record that a sent request moved to another worker, or to no worker (None)."""

    def finish(
        self,
        request: Request,
        output_tokens: int,
        now_s: float | None = None,
        read: Read | None = None,
    ) -> None:
        """Handle the end of a sent request.

        ``now_s`` is the time in seconds, or None to use the time of the latest event. ``read`` is
        the server's report of the prompt's length, or None; the report corrects the charge.
        """

    def withdraw(self, request: Request) -> None:
        """Withdraw a request that waits in the queue."""

    def retry_after_s(self) -> float | None:
        """Return the seconds until the last refused client should retry, or None if unknown."""
        return None


T = TypeVar("T")


class QueueHost(Generic[T]):
    """The owner of a queue before the workers: a simulator or a real router.

    ``held`` maps each queued request to the data needed to send the request.
    """

    def __init__(self, queue: HoldsRequests) -> None:
        self.queue = queue
        self.held: dict[Request, T] = {}
        self._sent: set[Request] = set()

    def is_sent(self, request: Request) -> bool:
        """Return whether the request was sent to a worker and has not ended."""
        return request in self._sent

    def end_sent(self, request: Request) -> bool:
        """Record the end of a sent request; return False if the request was not sent."""
        was_sent = request in self._sent
        self._sent.discard(request)
        return was_sent

    def shed_queue(self, now_s: float, refuse: Callable[[Request], None]) -> None:
        """Call ``refuse`` for each request that the queue drops now."""
        for request in self.queue.shed(now_s):
            refuse(request)

    def release_queue(self, now_s: float, send: Send, refuse: Callable[[Request], None]) -> None:
        """Refuse requests that the queue drops, and send requests that the queue releases."""

        def send_one(request: Request, worker: int) -> None:
            self._sent.add(request)
            send(request, worker)

        self.shed_queue(now_s, refuse)
        self.queue.release(now_s, send_one)


class GatewayQueue(HoldsRequests):
    """A queue in a scheduler's order; saturation detector and router decide when to send a request.

    The queue calls a ``LocalScheduler`` as an engine does. The queue takes cached prefixes into
    account only if a ``view`` is given. Inputs are charged in full when a request is sent. Outputs
    are charged when a request ends; with ``ahead``, an expected output is charged in advance. The
    queue ignores priorities, because a ``Gateway`` has a queue for each priority.
    """

    def __init__(
        self,
        scheduler: LocalScheduler,
        router: Router,
        detector: Detector,
        view: FlowView | None = None,
        shared: SharedCounters | None = None,
        ahead: OutputsAhead | None = None,
    ) -> None:
        self.scheduler = scheduler
        # ``shared`` holds the counters that several routers share, or None if counters are not
        # shared.
        self.shared = shared
        # time (s) up to which no request is sent, so that other routers' clients catch up, or None
        self._held_until_s: float | None = None
        self._flows = scheduler if isinstance(scheduler, FlowPolicy) else None
        self._ahead = ahead
        self._router = router
        self._detector = detector
        self._view = QueueView() if view is None else view
        self._heard_s = 0.0
        self._idle = IdleClients()

    def __len__(self) -> int:
        return len(self._view)

    def __iter__(self) -> Iterator[Request]:
        return self._view.by_arrival()

    def enter(self, request: Request, now_s: float) -> bool:
        self._heard_s = now_s
        if not self.scheduler.accepts(request, now_s):
            return False
        if self.shared is None:
            self.scheduler.on_arrival(request, self._view, now_s)
        else:
            before = self.shared.counter(request.client)
            self._view.elsewhere = self.shared.elsewhere(now_s)
            self.scheduler.on_arrival(request, self._view, now_s)
            self._view.elsewhere = ()
            self.shared.lifted(request.client, before)
        self._view.enter(request)
        self._idle.begin_request(request.client)
        return True

    def release(self, now_s: float, send: Send) -> None:
        self._heard_s = now_s
        detector = self._detector

        def try_send(request: Request) -> Tried:
            if self.shared is not None:
                self._held_until_s = self.shared.may_go_s(request.client, now_s)
                if self._held_until_s is not None:
                    return Tried.NO_ROOM
            worker = self._worker_for(request, now_s)
            if worker is None:
                return Tried.NO_ROOM
            self._view.leave(request)
            self.scheduler.on_admitted(request, request.input_tokens, False)
            if self._ahead is not None:
                self._ahead.charge_ahead(request)
            # ``on_sent`` must come first, because ``send`` may move the request to another worker.
            detector.on_sent(request, worker)
            send(request, worker)
            return Tried.ADMITTED if detector.has_room(now_s) else Tried.LAST

        self._held_until_s = None
        detector.poll_workers(now_s)
        if len(self._view) and detector.has_room(now_s):
            drive(self.scheduler.select(self._view, now_s), try_send)

    def _worker_for(self, request: Request, now_s: float) -> int | None:
        """Return the worker that the policy or the router chooses, or None if no worker is free."""
        routed = self._router.route(request, now_s)
        place = None if self._flows is None else self._flows.place
        chosen = None if place is None else place(request, now_s)
        if chosen is None or routed is None:
            return routed
        assert isinstance(self._router, Rerouting), "a policy that places requests overrides"
        self._router.redirect(request, routed, chosen)
        return chosen

    def given_up(self, now_s: float) -> Collection[Request]:
        """Return the queued requests that the policy now refuses."""
        given_up = None if self._flows is None else self._flows.given_up
        return () if given_up is None else given_up(now_s)

    def wake_s(self, now_s: float) -> float | None:
        times_s = [self._detector.wake_s(now_s), self._held_until_s]
        if len(self._view) and not self.scheduler.work_conserving:
            times_s.append(self.scheduler.wake_s(self._view, now_s))
        return min((time_s for time_s in times_s if time_s is not None), default=None)

    def moved(self, request: Request, worker: int | None) -> None:
        self._detector.on_moved(request, worker)

    def finish(
        self,
        request: Request,
        output_tokens: int,
        now_s: float | None = None,
        read: Read | None = None,
    ) -> None:
        self._detector.on_finish(request)
        if self._flows is not None:
            at_s = self._heard_s if now_s is None else now_s
            self._flows.on_answer(request, read or Read(request.input_tokens), output_tokens, at_s)
        else:
            self._tell_scheduler(request, output_tokens, read)
        self._end_request(request)

    def _tell_scheduler(self, request: Request, output_tokens: int, read: Read | None) -> None:
        """Report a request's end to a scheduler other than a ``FlowPolicy``."""
        if read is not None and (correct := self.scheduler.on_read) is not None:
            correct(request, read)
        if self._ahead is not None:
            self._ahead.charge_rest(request, output_tokens)
        elif output_tokens:
            self.scheduler.on_tokens(request.client, output_tokens)
        charge_tokens = self.scheduler.on_request_tokens
        if output_tokens and charge_tokens is not None:
            charge_tokens(request, output_tokens)
        self.scheduler.on_output(request, output_tokens)

    def waiting_clients(self) -> Collection[str]:
        return self._view.clients()

    def withdraw(self, request: Request) -> None:
        self._view.leave(request)
        if self._flows is None:
            self.scheduler.on_output(request, 0)
        self._end_request(request)

    def _end_request(self, request: Request) -> None:
        """End a request, and delete the state of clients that have been idle for too long."""
        self.scheduler.on_finish(request)
        for client in self._idle.end_request(request.client):
            # Counters that several routers share are never deleted.
            if self.shared is None:
                self.scheduler.forget(client)
            if self._ahead is not None:
                self._ahead.forget(client)


def arrival_queue(router: Router) -> GatewayQueue:
    """Return a router's own queue, sorted by the router's ``order`` or, by default, by arrival."""
    return GatewayQueue(router.order or InOrder(InOrder.Params()), router, AlwaysRoom())


class Gateway(HoldsRequests):
    """A queue with strict priority between bands, and with limits on the number of queued requests.

    A band is all requests of one priority. The rules are those of llm-d's flow control
    (llm-d-router @7c6ba75), except that no limit counts bytes. ``make_queue`` returns a new queue
    for a band. With ``orders_bands``, all priorities share one queue.
    """

    def __init__(
        self,
        make_queue: Callable[[], GatewayQueue],
        params: GatewayParams,
        limits: ClientLimits | None = None,
        *,
        orders_bands: bool = False,
    ) -> None:
        self.params = params
        self._orders_bands = orders_bands
        self._limits = limits
        self._make_queue = make_queue
        # ``_bands`` maps each priority to its queue, the highest priority first.
        self._bands: dict[int, GatewayQueue] = {}
        self._band_of: dict[Request, int] = {}
        self._held: dict[Request, None] = {}
        self._held_in: defaultdict[int, dict[Request, None]] = defaultdict(dict)
        # ``_ends`` is a heap of queued requests, by the time in seconds at which each must leave
        # the queue.
        self._ends: list[tuple[float, int, Request]] = []
        self._numbers = count()
        self._displaced: list[Request] = []
        # ``others`` holds the latest sums of charges that other routers' gateways have sent.
        self.others = Heard()
        self._changes = Changes()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._held))

    @property
    def balances(self) -> Mapping[int, Mapping[str, float]]:
        """Return the balances of clients for each priority band."""
        return {band: queue.scheduler.balances() for band, queue in self._bands.items()}

    def enter(self, request: Request, now_s: float) -> bool:
        usual = self.params.priority.get(request.client, request.priority)
        priority = 0 if self._orders_bands else usual
        queue = self._band(priority)
        if 0 < self.params.band_requests <= len(self._held_in[priority]):
            return False
        victim = None
        if 0 < self.params.max_requests <= len(self._held):
            lowest = min((band for band, held in self._held_in.items() if held), default=priority)
            if lowest >= priority:
                return False
            victim = next(reversed(self._held_in[lowest]))
        if not self._enter_band(request, priority, queue, now_s):
            return False
        if victim is not None:
            self.withdraw(victim)
            self._displaced.append(victim)
        self._band_of[request] = priority
        self._held[request] = self._held_in[priority][request] = None
        if self.params.ttl_s:
            heappush(self._ends, (now_s + self.params.ttl_s, next(self._numbers), request))
        return True

    def _enter_band(
        self, request: Request, priority: int, queue: GatewayQueue, now_s: float
    ) -> bool:
        if self._limits is None:
            return queue.enter(request, now_s)
        if not self._limits.admits(request, priority):
            return True
        entered = queue.enter(request, now_s)
        if not entered:
            self._limits.end_admitted(request, 0)
        return entered

    def shed(self, now_s: float) -> Collection[Request]:
        gone, self._displaced = self._displaced, []
        for queue in self._bands.values():
            for request in list(queue.given_up(now_s)):
                self.withdraw(request)
                gone.append(request)
        self._forget_gone()
        while self._ends and self._ends[0][0] <= now_s:
            request = self._ends[0][2]
            self.withdraw(request)
            gone.append(request)
            self._forget_gone()
        return gone

    def release(self, now_s: float, send: Send) -> None:
        def sent(request: Request, worker: int) -> None:
            self._hold_no_more(request)
            send(request, worker)

        for request in self._limits.admit_freed() if self._limits is not None else ():
            if not self._bands[self._band_of[request]].enter(request, now_s):
                # A policy may refuse a request that had to wait because of its client's limits.
                assert self._limits is not None
                self._limits.end_admitted(request, 0)
                self._hold_no_more(request)
                del self._band_of[request]
                self._displaced.append(request)
        for queue in self._bands.values():
            queue.release(now_s, sent)

    def wake_s(self, now_s: float) -> float | None:
        self._forget_gone()
        if self._displaced:
            return now_s
        times_s = [queue.wake_s(now_s) for queue in self._bands.values()]
        if self._ends:
            times_s.append(self._ends[0][0])
        return min((time_s for time_s in times_s if time_s is not None), default=None)

    def moved(self, request: Request, worker: int | None) -> None:
        self._bands[self._band_of[request]].moved(request, worker)

    def finish(
        self,
        request: Request,
        output_tokens: int,
        now_s: float | None = None,
        read: Read | None = None,
    ) -> None:
        self._bands[self._band_of.pop(request)].finish(request, output_tokens, now_s, read)
        if self._limits is not None:
            self._limits.end_admitted(request, output_tokens)

    def withdraw(self, request: Request) -> None:
        # A displaced request has already left its queue.
        if request in self._displaced:
            self._displaced.remove(request)
            return
        self._hold_no_more(request)
        queue = self._bands[self._band_of.pop(request)]
        if self._limits is not None:
            if self._limits.leave_line(request):
                return
            self._limits.end_admitted(request, 0)
        queue.withdraw(request)

    def _hold_no_more(self, request: Request) -> None:
        del self._held[request], self._held_in[self._band_of[request]][request]

    @property
    def shares_counters(self) -> bool:
        """Return whether the gateway shares its policy's counters with other gateways."""
        return self._make_queue().shared is not None

    def join_peers(self) -> None:
        """Do nothing, because the queues of a gateway share their counters from the start."""

    def export_totals(self, since: int = 0) -> Totals:
        shared = self._shared_by_band()
        for counters in shared.values():
            for client in counters.changed():
                self._changes.note(client)
        changed = self._changes.exported(since)
        raised: dict[str, dict[int, float]] = {}
        for band, of in shared.items():
            for client in of.raised if changed is None else changed:
                if client in of.raised:
                    raised.setdefault(client, {})[band] = of.raised[client]
        waiting: dict[str, tuple[int, ...]] = {}
        for band, queue in self._bands.items():
            for client in queue.waiting_clients():
                waiting[client] = (*waiting.get(client, ()), band)
        totals = Totals(self._changes.version, self._charged(changed), raised, waiting)
        return totals if changed is None else totals._replace(since=since)

    def _shared_by_band(self) -> dict[int, SharedCounters]:
        queues = self._bands.items()
        return {band: queue.shared for band, queue in queues if queue.shared is not None}

    def charged_totals(self) -> Sums:
        return self._charged(None)

    def _charged(self, clients: Collection[str] | None) -> dict[str, dict[int, float]]:
        charged: dict[str, dict[int, float]] = {}
        for band, of in self._shared_by_band().items():
            known = of.clients()
            for client in known if clients is None else clients:
                if client in known:
                    charged.setdefault(client, {})[band] = of.charged(client)
        return charged

    def heard_totals(self) -> Mapping[str, Totals]:
        return self.others.latest

    def merge_totals(self, origin: str, totals: Totals, now_s: float) -> None:
        """Apply the charges of another router's gateway, and record the clients waiting there."""
        newly = self.others.newer(origin, totals)
        if newly is None:
            return
        for band in sorted(self.others.charged_places(origin)):
            shared = self._band(band).shared
            if shared is not None:
                there = [client for client, bands in totals.waiting.items() if band in bands]
                shared.apply_totals(origin, newly, totals.raised, there, band, now_s)

    def forget_origin(self, origin: str) -> None:
        self.others.forget_origin(origin)
        for shared in self._shared_by_band().values():
            shared.forget_origin(origin)

    @property
    def ahead(self) -> float:
        """The largest lead in service of a client over a client that waited at another router."""
        found = [queue.shared.ahead for queue in self._bands.values() if queue.shared is not None]
        return max(found, default=0.0)

    def _band(self, priority: int) -> GatewayQueue:
        if priority not in self._bands:
            self._bands[priority] = self._make_queue()
            self._bands = dict(sorted(self._bands.items(), reverse=True))
        return self._bands[priority]

    def _forget_gone(self) -> None:
        while self._ends and self._ends[0][2] not in self._held:
            heappop(self._ends)
