"""The dispatcher: passes a Router object the state of workers, requests and caches.

The dispatcher has no sockets and no tasks: each call takes effect immediately.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Collection
from contextlib import suppress
from http import HTTPStatus
from itertools import count

from fairbench.core import Prompt, Request, Segment
from fairbench.errors import RunFailed
from fairbench.live.json_errors import Problem, unavailable
from fairbench.schedulers.base import Router
from fairbench.schedulers.gateway.admission.reroute import Rerouting
from fairbench.schedulers.gateway.queue import GatewayQueue, HoldsRequests, InOrder
from fairbench.schedulers.gateway.saturation.detector import AlwaysRoom
from fairbench.schedulers.views import WorkerLoad
from fairbench_serve.assumed_cache import AssumedCaches
from fairbench_serve.charges import NOTHING, Charge
from fairbench_serve.deadlines import NO_PROMISE, Promise
from fairbench_serve.ingress import ANYWHERE, Alarm, Flight, Ingress, OnSent, Wish, pages_of

log = logging.getLogger(__name__)


class Dispatcher:
    """Sends requests to the workers that the router chooses, and never to one that is down.

    ``pool_tokens`` is the size of a worker's KV pool, ``now_s`` the time in seconds from any start.
    ``followed`` are the workers whose KV events are followed; they cache whole pages of
    ``page_tokens`` only.
    """

    def __init__(
        self,
        router: Router,
        workers: int,
        pool_tokens: int,
        now_s: Callable[[], float],
        *,
        page_tokens: int = 1,
        followed: Collection[int] = (),
    ) -> None:
        self.router = router
        self.up = set(range(workers))
        self.flights: dict[int, dict[Flight, None]] = {worker: {} for worker in self.up}
        self._numbers = count(workers)
        self._leaving: dict[int, Callable[[], None]] = {}
        self._page_tokens = page_tokens
        self.now_s = now_s
        self._request_ids = count()
        self.ingress: Ingress | None = None
        if router.holds:
            self.hold(GatewayQueue(InOrder(InOrder.Params()), router, AlwaysRoom()))
        self._caches = AssumedCaches(pool_tokens, followed, self.evicted)
        for worker in range(workers):
            self._caches.renew(worker)

    def hold(self, queue: HoldsRequests, alarm: Alarm | None = None) -> None:
        """Use this queue before the router. Call this before the first request."""
        self.ingress = Ingress(queue, self._send, self.now_s, lambda: bool(self.up), alarm)

    @property
    def under_way(self) -> int:
        """Unfinished requests, including those that wait at their worker or in the queue."""
        held = 0 if self.ingress is None else len(self.ingress)
        return sum(map(len, self.flights.values())) + held

    def workers(self) -> Collection[int]:
        """Return the available workers in ascending order (``FleetView``)."""
        return sorted(self.up)

    def load(self, worker: int) -> WorkerLoad:
        """Return the unfinished load at the worker, by the router's own count (``FleetView``)."""
        flights = self.flights[worker]
        return WorkerLoad(len(flights), sum(flight.request.input_tokens for flight in flights))

    def make_request(
        self,
        client: str,
        ids: array[int],
        max_new_tokens: int,
        program_id: int,
        depth: int,
        promise: Promise = NO_PROMISE,
    ) -> Request:
        """Build a request as routers see it, with a prompt of these token ids."""
        number, prompt = next(self._request_ids), pages_of(ids, self._page_tokens)
        arrival_s = self.now_s()
        due = promise.due(arrival_s, max_new_tokens)
        return Request(
            *(number, client, program_id, depth, prompt),
            *(len(ids), max_new_tokens, arrival_s),
            deadline_s=due.end_s,
            first_token_by_s=due.first_token_s,
            token_every_s=due.token_every_s,
        )

    def dispatch(
        self, request: Request, on_sent: OnSent = lambda flight: None, wish: Wish = ANYWHERE
    ) -> Flight | None:
        """Route a request; return None if it is queued and will be passed to ``on_sent`` later.

        ``on_sent`` gets a Problem instead if the request is never sent. A retried request is sent
        again without waiting, unless the router itself may hold it. The caller must call ``over``
        later. Raises Problem: 503 if no worker is up, 429 if the queue refuses it, 500 if the
        router fails.
        """
        if not self.up:
            raise unavailable("no worker is available")
        if self.ingress is not None and self.router.holds:
            self.over(request)
        elif self.ingress is None or self.ingress.let_go(request):
            return self._send(request, self.router.route(request, self.now_s()), wish)
        return self.ingress.enter(request, on_sent, wish)

    def is_under_way(self, flight: Flight) -> bool:
        """Return whether the request is still at its worker: neither finished nor lost."""
        return flight in self.flights.get(flight.worker, ())

    def over(self, request: Request, charge: Charge = NOTHING) -> None:
        """Record that no client waits for the answer any more, and the cost of the request."""
        if self.ingress is not None:
            self.ingress.over(request, charge)
            self.release()

    def release(self) -> None:
        """Release queued requests that may go after a change."""
        if self.ingress is not None:
            self.ingress.release()

    def _send(self, request: Request, routed: int | None, wish: Wish) -> Flight:
        if routed is None or routed not in self.flights:
            text = f"router {self.router.name}: there is no worker {routed}"
            raise Problem(HTTPStatus.INTERNAL_SERVER_ERROR, text)
        flight = Flight(request, self._place(routed, wish), routed)
        self.flights[flight.worker][flight] = None
        if self.ingress is not None:
            self.ingress.moved(request, flight.worker)
        if self.router.wants_evictions:
            self._caches[routed].touch(request.prompt)
        return flight

    def began(self, flight: Flight) -> None:
        """Record that the answer starts to stream. A second call has no effect."""
        if flight.first_token_s is None:
            flight.first_token_s = self.now_s()

    def _place(self, routed: int, wish: Wish) -> int:
        """Return the worker for the router's choice, which may be outdated (``leave``)."""
        if wish.probe in self.flights and wish.probe not in self._leaving:
            return wish.probe
        if routed in self.up and routed not in wish.avoid:
            return routed
        others = self.up.difference(wish.avoid) or self.up
        return min(others, key=lambda one: len(self.flights[one]))

    def finish(self, flight: Flight, output_tokens: int, *, failed: bool = False) -> None:
        """Finish a request, however it ended; ``failed`` if the worker did nothing for it."""
        request = flight.request
        if self.is_under_way(flight):
            del self.flights[flight.worker][flight]
            if self.router.wants_evictions and flight.routed in self._caches:
                self._caches[flight.routed].add(request.prompt)
        output = Segment(f"output of {request.request_id}", output_tokens)
        if failed:
            self.router.on_failure(request, flight.routed, self.now_s())
        else:
            if flight.first_token_s is not None:
                self.router.on_first_token(request, flight.routed, flight.first_token_s)
            self.router.on_finish(request, flight.routed, output, self.now_s())
        if self.router.wants_evictions and output_tokens:
            # Nothing will ever match, or evict, a segment that does not consist of token pages.
            self.evicted(flight.routed, (*request.prompt, output), output_tokens)
        self._remove_if_empty(flight.worker)
        self.release()

    def leave(self, worker: int, *, died: bool = False) -> None:
        """Take a worker down: it gets no more requests, and its present requests are lost.

        Unless it ``died``, the worker may be alive but does not answer.
        """
        if worker not in self.flights:
            return
        if worker in self.up:
            log.warning("worker %d is down", worker)
        self.eject(worker)
        lost, self.flights[worker] = self.flights[worker], {}
        for flight in lost:
            flight.died = died
            flight.on_lost()
            if self.ingress is not None:
                self.ingress.moved(flight.request, None)
        self._remove_if_empty(worker)
        if lost:
            self.release()

    def eject(self, worker: int) -> None:
        """Stop sending requests to a worker; its present requests continue."""
        if worker not in self.up:
            return
        self.up.remove(worker)
        # A router that cannot change its workers keeps it; ``dispatch`` passes over it.
        with suppress(RunFailed):
            self.router.on_worker_leave(worker, self.now_s())
        self._caches.renew(worker)
        self.release()

    def join(self, worker: int) -> None:
        """Bring a worker up again, with an empty cache."""
        if not self.may_join(worker):
            return
        self.up.add(worker)
        with suppress(RunFailed):
            self.router.on_worker_join(worker, self.now_s())
        log.info("worker %d is up", worker)
        self.release()

    def may_join(self, worker: int) -> bool:
        """Return whether a worker is out of rotation, but can return."""
        return worker in self.flights and worker not in self.up and worker not in self._leaving

    @property
    def can_change(self) -> bool:
        """Return whether the router supports workers that come and go."""
        own = type(self.router.router if isinstance(self.router, Rerouting) else self.router)
        return (
            own.on_worker_join is not Router.on_worker_join
            and own.on_worker_leave is not Router.on_worker_leave
        )

    def add(self, *, followed: bool) -> int:
        """Add a worker under a new number; the worker is down until it joins."""
        worker = next(self._numbers)
        self.flights[worker] = {}
        self._caches.renew(worker)
        if followed:
            self._caches.follow(worker, True)
        return worker

    def drain(self, worker: int, on_empty: Callable[[], None]) -> None:
        """Stop sending requests to a worker, and remove it once its requests have finished."""
        self.eject(worker)
        self._leaving[worker] = on_empty
        self._remove_if_empty(worker)

    def is_draining(self, worker: int) -> bool:
        """Return whether a worker only finishes its present requests."""
        return worker in self._leaving

    def _remove_if_empty(self, worker: int) -> None:
        if worker in self._leaving and not self.flights[worker]:
            del self.flights[worker]
            del self._caches[worker]
            self._leaving.pop(worker)()

    def lost(self, worker: int, prefix: Prompt, tokens: int) -> None:
        """Handle a worker's event: the last ``tokens`` of a prefix left its cache."""
        if worker in self._caches:
            self._caches[worker].lose(prefix, tokens)
        self.evicted(worker, prefix, tokens)

    def evicted(self, worker: int, prefix: Prompt, tokens: int) -> None:
        """Report that the last ``tokens`` of a prefix left the worker's cache."""
        self.router.on_evict(prefix, tokens, worker, self.now_s())

    def forget_cache(self, worker: int) -> None:
        """Treat the worker's cache as empty or unknown."""
        if worker in self._caches:
            self._caches[worker].clear()

    def follow(self, worker: int, follows: bool) -> None:
        """Set whether the worker's KV events are followed; its cache becomes unknown."""
        self._caches.follow(worker, follows)
