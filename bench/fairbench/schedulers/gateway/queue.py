"""A queue before the cluster: any local scheduler orders the queue, any router empties it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Protocol, TypeAlias

from fairbench.core import Request
from fairbench.schedulers.accounts.worker_credits import BATCH, MAX_CLIENTS
from fairbench.schedulers.base import LocalScheduler, Read, Router, Selection, WaitingView
from fairbench.schedulers.charging.dispatch import MeanAnswers
from fairbench.schedulers.drive import Tried, drive
from fairbench.schedulers.gateway.orders import Order
from fairbench.schedulers.gateway.policy import FlowPolicy
from fairbench.schedulers.gateway.saturation.detector import Detector
from fairbench.schedulers.list_view import ListScan, QueueView
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.peers.counters import SharedCounters


class OutputsAhead:
    """Charges a ``scheduler`` the mean length of a client's answers, and later the difference.

    Otherwise a client's requests would be sent one after the other until the first answer has
    ended; the client would then have no waiting request left, and its lead would be gone when its
    next request comes ([VTC] lines 8-13). Precondition: the scheduler ``refunds_tokens``.
    """

    def __init__(self, scheduler: LocalScheduler) -> None:
        self._scheduler = scheduler
        self._answers = MeanAnswers()
        self._charged: dict[Request, int] = {}  # tokens charged for requests in progress

    def sent(self, request: Request) -> None:
        """Handle a request that is sent for the first time."""
        mean = round(self._answers.expected(request.client))
        self._charged[request] = tokens = min(mean, request.max_new_tokens)
        if tokens:
            self._scheduler.on_tokens(request.client, tokens)

    def over(self, request: Request, output_tokens: int) -> None:
        """Handle the end of a request; its output is 0 tokens if no worker served it."""
        more = output_tokens - self._charged.pop(request)
        if more:
            self._scheduler.on_tokens(request.client, more)
        if output_tokens:
            self._answers.finished(request.client, output_tokens)

    def forget(self, client: str) -> None:
        self._answers.forget(client)


class IdleClients:
    """The clients without a request; only ``MAX_CLIENTS`` are remembered."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()  # clients with requests that are queued or sent
        self._idle: dict[str, None] = {}  # the longest idle client first

    def entered(self, client: str) -> None:
        self._requests[client] += 1
        self._idle.pop(client, None)

    def over(self, client: str) -> Collection[str]:
        """Record the end of a request, and return the clients to forget."""
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
    """A ``QueueView`` in which the requests of each client (its flow) are sorted by ``order``.

    Cached tokens are those of the best worker; a scheduler that asks for match order gets this
    order over all flows, without the engine's deprioritisation of equal prompts.
    """

    def __init__(self, order: Order) -> None:
        super().__init__()
        self._order = order

    def oldest(self, client: str) -> Request:
        return self._order.first(self._of_client[client])

    def queue_order(self) -> ListScan:
        return ListScan(list(self._order.in_order(self._requests)), self._requests)

    def match_order(self, *, refresh: bool = True) -> ListScan:
        if not refresh:
            return self.queue_order()
        by_match = sorted(self._requests, key=lambda request: -self.matched_tokens(request))
        return ListScan(by_match, self._requests)

    def matched_tokens(self, request: Request) -> int:
        return min(self._order.matched(request), request.input_tokens - 1)


Send: TypeAlias = Callable[[Request, int], None]
"""Sends a request to a worker."""


class InOrder(FCFS):
    """A policy that offers every queued request, oldest first, even if others were not admitted."""

    name = "in-order"

    def select(self, view: WaitingView, now_s: float) -> Selection:
        waiting = view.queue_order()
        while (request := next(waiting, None)) is not None:
            yield request


class HoldsRequests(Protocol):
    """The interface of a pure queue before the workers: the host reports all events to it.

    The host calls ``shed`` and then ``release`` after every change, and at ``wake_s``.
    """

    def enter(self, request: Request, now_s: float) -> bool:
        """Add an arriving request; return False if the request is refused."""

    def shed(self, now_s: float) -> Collection[Request]:
        """Return the queued requests that are given up now; the host then refuses them."""
        return ()

    def release(self, now_s: float, send: Send) -> None:
        """Call ``send`` for each request that can go now, one by one, so that loads are current."""

    def wake_s(self, now_s: float) -> float | None:
        """Return the time of the next call without an event."""

    def moved(self, request: Request, worker: int | None) -> None:
        """Record the present worker of a sent request; None if it has none but is not over."""

    def finish(
        self,
        request: Request,
        output_tokens: int,
        now_s: float | None = None,
        read: Read | None = None,
    ) -> None:
        """Handle the end of a sent request, with its output tokens.

        ``now_s`` is for policies that count time; None means the time of the latest event. ``read``
        corrects the charge for its prompt, or None for no correction.
        """

    def withdraw(self, request: Request) -> None:
        """Withdraw a queued request."""

    def retry_after_s(self) -> float | None:
        """Return when the latest refused request should be retried, None if unknown."""
        return None


class GatewayQueue(HoldsRequests):
    """A queue that keeps requests until the ``detector`` and the router release them, in order.

    The queue hosts a ``LocalScheduler`` as an engine does, but knows no caches without a ``view``:
    the whole input is charged when a request is sent; its outputs are charged when it ends, or in
    advance with ``ahead``. The queue sheds no requests and has one priority; ``bands`` has several
    priorities.
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
        self.shared = shared  # the scheduler's counters, if other routers have a part in them
        self._held_until_s: float | None = None  # because a client that waits elsewhere goes first
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
        return self._view.arrivals()

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
        self._idle.entered(request.client)
        return True

    def release(self, now_s: float, send: Send) -> None:
        self._heard_s = now_s
        detector = self._detector

        def try_send(request: Request) -> Tried:
            if self.shared is not None:
                self._held_until_s = self.shared.may_go_s(request.client, now_s)
                if self._held_until_s is not None:
                    return Tried.NO_ROOM
            worker = self._router.route(request, now_s)
            if worker is None:
                return Tried.NO_ROOM
            self._view.leave(request)
            self.scheduler.on_admitted(request, request.input_tokens, False)
            if self._ahead is not None:
                self._ahead.sent(request)
            detector.on_sent(request, worker)  # the next line may move the request
            send(request, worker)
            return Tried.ADMITTED if detector.has_room(now_s) else Tried.LAST

        self._held_until_s = None
        detector.look(now_s)
        if len(self._view) and detector.has_room(now_s):
            drive(self.scheduler.select(self._view, now_s), try_send)

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
            self._tell(request, output_tokens, read)
        self._over(request)

    def _tell(self, request: Request, output_tokens: int, read: Read | None) -> None:
        """Tell a local scheduler the request's outcome, as an engine would."""
        if read is not None:
            self.scheduler.on_read(request, read)
        if self._ahead is not None:
            self._ahead.over(request, output_tokens)
        elif output_tokens:
            self.scheduler.on_tokens(request.client, output_tokens)
        if output_tokens and self.scheduler.per_request_tokens:
            self.scheduler.on_request_tokens(request, output_tokens)
        self.scheduler.on_output(request, output_tokens)

    def waiting(self) -> Collection[str]:
        return self._view.clients()

    def withdraw(self, request: Request) -> None:
        self._view.leave(request)
        if self._flows is None:
            self.scheduler.on_output(request, 0)
        self._over(request)

    def _over(self, request: Request) -> None:
        """Handle the end of a request; forget clients that have been idle for longest."""
        self.scheduler.on_finish(request)
        for client in self._idle.over(request.client):
            if self.shared is None:  # otherwise other routers rely on the counter
                self.scheduler.forget(client)
            if self._ahead is not None:
                self._ahead.forget(client)
