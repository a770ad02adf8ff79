"""The Router object and what it is told: which workers are up, what is under way, what is cached.

No sockets here and no tasks: everything happens at once, when it is called.
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
from fairbench.live.router.assumed_cache import AssumedCaches
from fairbench.live.router.flight import ANYWHERE, Flight, OnSent, Wish, pages_of
from fairbench.live.router.problem import Problem
from fairbench.schedulers.base import Router
from fairbench.schedulers.gateway.queue import GatewayQueue, InOrder
from fairbench.schedulers.gateway.room import AlwaysRoom
from fairbench.schedulers.views import WorkerLoad

RETRY_AFTER_S = 5

log = logging.getLogger(__name__)


class Dispatcher:
    """Sends requests where the router says, and never to a worker that is down.

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
        self.flights: list[dict[Flight, None]] = [{} for _ in range(workers)]
        self._page_tokens = page_tokens
        self._now_s = now_s
        self._request_ids = count()
        self._held: dict[Request, tuple[OnSent, Wish]] = {}
        self._ingress = (
            GatewayQueue(InOrder(InOrder.Params()), router, AlwaysRoom()) if router.holds else None
        )
        self._caches = AssumedCaches(workers, pool_tokens, followed, self.evicted)

    @property
    def under_way(self) -> int:
        """Requests sent and not finished, those that wait at their worker or here included."""
        return sum(map(len, self.flights)) + len(self._held)

    def workers(self) -> Collection[int]:
        """The workers that are up, ascending (``FleetView``)."""
        return sorted(self.up)

    def load(self, worker: int) -> WorkerLoad:
        """What was sent there and is not over; the worker itself is not asked (``FleetView``)."""
        flights = self.flights[worker]
        return WorkerLoad(len(flights), sum(flight.request.input_tokens for flight in flights))

    def make_request(
        self, client: str, ids: array[int], max_new_tokens: int, program_id: int, depth: int
    ) -> Request:
        """A request as routers see it."""
        number, prompt = next(self._request_ids), pages_of(ids, self._page_tokens)
        return Request(
            *(number, client, program_id, depth, prompt),
            *(len(ids), max_new_tokens, self._now_s()),
        )

    def dispatch(
        self, request: Request, on_sent: OnSent = lambda flight: None, wish: Wish = ANYWHERE
    ) -> Flight | None:
        """Route a request. None if the router holds it: ``on_sent`` is called once it goes.

        That gets a Problem instead if the router fails later. Raises Problem: 503 if no worker is
        up, 500 if the router fails.
        """
        if not self.up:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE, "no worker is up", retry_after_s=RETRY_AFTER_S
            )
        if self._ingress is None:
            return self._send(request, self.router.route(request, self._now_s()), wish)
        sent: list[Flight | Problem] = []
        self._held[request] = sent.append, wish
        self._ingress.enter(request, self._now_s())
        self._release()
        if not sent:
            self._held[request] = on_sent, wish
            return None
        if isinstance(sent[0], Problem):
            raise sent[0]
        return sent[0]

    def is_under_way(self, flight: Flight) -> bool:
        """Whether its worker has neither finished nor lost it."""
        return flight in self.flights[flight.worker]

    def withdraw(self, request: Request) -> None:
        """A request that is held is wanted no more."""
        if self._ingress is not None and request in self._held:
            del self._held[request]
            self._ingress.withdraw(request)

    def _release(self) -> None:
        """Ask the router again about what it holds, and tell those whose request goes now."""
        if self._ingress is None or not self.up:
            return
        gone: list[tuple[Request, Flight | Problem]] = []

        def send(request: Request, routed: int) -> None:
            try:
                flight: Flight | Problem = self._send(request, routed, self._held[request][1])
            except Problem as problem:
                flight = problem
            gone.append((request, flight))

        self._ingress.release(self._now_s(), send)
        for request, flight in gone:
            if isinstance(flight, Problem):
                self._ingress.finish(request, 0)
            self._held.pop(request)[0](flight)

    def _send(self, request: Request, routed: int | None, wish: Wish) -> Flight:
        if routed is None or not 0 <= routed < len(self.flights):
            text = f"router {self.router.name}: there is no worker {routed}"
            raise Problem(HTTPStatus.INTERNAL_SERVER_ERROR, text)
        flight = Flight(request, self._place(routed, wish), routed)
        self.flights[flight.worker][flight] = None
        if self.router.wants_evictions:
            self._caches[routed].touch(request.prompt)
        return flight

    def began(self, flight: Flight) -> None:
        """The answer begins to stream. A second call says nothing new."""
        if flight.first_token_s is None:
            flight.first_token_s = self._now_s()

    def _place(self, routed: int, wish: Wish) -> int:
        """Where the router's choice really goes: it may know less (see ``leave``) than we do."""
        if wish.probe is not None:
            return wish.probe
        if routed in self.up and routed not in wish.avoid:
            return routed
        others = self.up.difference(wish.avoid) or self.up
        return min(others, key=lambda one: len(self.flights[one]))

    def finish(self, flight: Flight, output_tokens: int, *, failed: bool = False) -> None:
        """The request is over, however it ended, and has produced so many tokens.

        ``failed`` says that its worker did nothing for it.
        """
        request = flight.request
        if flight in self.flights[flight.worker]:
            del self.flights[flight.worker][flight]
            if self.router.wants_evictions:
                self._caches[flight.routed].add(request.prompt)
        output = Segment(f"output of {request.request_id}", output_tokens)
        if failed:
            self.router.on_failure(request, flight.routed, self._now_s())
        else:
            if flight.first_token_s is not None:
                self.router.on_first_token(request, flight.routed, flight.first_token_s)
            self.router.on_finish(request, flight.routed, output, self._now_s())
        if self.router.wants_evictions and output_tokens:
            # Nothing will ever match, or evict, a segment that is not made of token pages.
            self.evicted(flight.routed, (*request.prompt, output), output_tokens)
        if self._ingress is not None:
            self._ingress.finish(request, output_tokens)
            self._release()

    def leave(self, worker: int, *, died: bool = False) -> None:
        """The worker is down: nothing goes there any more, and what was there is lost.

        Unless it ``died`` it may be alive, but answers nothing.
        """
        if worker in self.up:
            log.warning("worker %d is down", worker)
        self.eject(worker)
        lost, self.flights[worker] = self.flights[worker], {}
        for flight in lost:
            flight.died = died
            flight.on_lost()
        if lost:
            self._release()

    def eject(self, worker: int) -> None:
        """Nothing goes there any more; what is there goes on."""
        if worker not in self.up:
            return
        self.up.remove(worker)
        # A router that cannot change its workers keeps it; ``dispatch`` passes over it.
        with suppress(RunFailed):
            self.router.on_worker_leave(worker, self._now_s())
        self._caches.renew(worker)
        self._release()

    def join(self, worker: int) -> None:
        """The worker is up again, with an empty cache."""
        if worker in self.up:
            return
        self.up.add(worker)
        with suppress(RunFailed):
            self.router.on_worker_join(worker, self._now_s())
        log.info("worker %d is up", worker)
        self._release()

    def evicted(self, worker: int, prefix: Prompt, tokens: int) -> None:
        """The last ``tokens`` of a prefix have left the worker's cache."""
        self.router.on_evict(prefix, tokens, worker, self._now_s())

    def forget_cache(self, worker: int) -> None:
        """Nothing is in the worker's cache, or nobody knows what."""
        self._caches[worker].clear()
