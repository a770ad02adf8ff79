"""The dispatcher, which keeps the state of workers, requests and caches for the router.

The dispatcher uses no sockets and no asyncio tasks; its methods take effect at once. The
dispatcher's assumed cache of each worker contains all prompts that the worker has cached.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from heapq import heapify
from http import HTTPStatus
from itertools import count

from fairbench.core import Prompt, Request, Segment, prompt_tokens
from fairbench.engine.kv_cache import KVCache
from fairbench.errors import RunFailed
from fairbench.schedulers.base import Router
from fairbench.schedulers.gateway.queue import HoldsRequests, arrival_queue
from fairbench.schedulers.gateway.rerouting import Rerouting
from fairbench.schedulers.views import WorkerLoad
from fairbench_load.http_server import Problem, unavailable
from fairbench_serve.answers import NOTHING, Charge
from fairbench_serve.config import NO_PROMISE, Promise
from fairbench_serve.ingress import (
    ANYWHERE,
    Alarm,
    AttemptFailure,
    OnSent,
    RequestInFlight,
    RouterIngress,
    Wish,
    pages_of,
)

# The simulated cache of a worker with KV events is twice as large as the worker's KV pool, so that
# the simulated cache evicts no prefix before the worker does.
FOLLOWED_SLACK = 2


class _LosingCache(KVCache):
    """A simulated cache from which tokens that a worker reports as evicted can be removed."""

    def __init__(self, capacity: int, on_evict: Callable[[Prompt, int], None]) -> None:
        super().__init__(capacity, on_evict)
        # number of nodes that were removed from the prefix tree but are still in the leaf list
        self._lost = 0

    def lose(self, prefix: Prompt, tokens: int) -> None:
        """Remove the last ``tokens`` tokens of a prefix unless a longer cached prompt uses them."""
        total = prompt_tokens(prefix)
        start = total - tokens
        # This call of ``match`` splits the prefix tree's node at the token ``start``.
        self.match(prefix, start)
        node, _ = self.match(prefix, total)
        heard, self.on_evict = self.on_evict, None
        while node.depth > start and not node.children:
            parent = node.parent
            assert parent is not None
            self._drop(node)
            node.locks, node.edge = 1, ()  # evictions skip locked nodes
            self._lost += node.listed
            node = parent
        self.on_evict = heard
        if 2 * self._lost > len(self._leaves):
            self._leaves = [entry for entry in self._leaves if not entry[-1].locks]
            heapify(self._leaves)
            self._lost = 0


class AssumedCache:
    """A simulated cache of the size of a worker's KV memory, with the worker's finished prompts.

    KV events report a worker's evictions sooner and more exactly than the assumed cache. If the
    worker sends no KV events, if token ids are approximate, or if the worker never cached a prompt,
    the router forgets the prefixes that the assumed cache evicts. ``on_evict(prefix, tokens)`` is
    called for tokens that the worker can no longer have in its cache. Queued prompts are not added,
    because they would evict tokens that the worker still has.
    """

    def __init__(self, pool_tokens: int, on_evict: Callable[[Prompt, int], None]) -> None:
        self._cache = _LosingCache(pool_tokens, on_evict)
        self._on_evict = on_evict

    def touch_prompt(self, prompt: Prompt) -> None:
        """Mark a prompt's cached prefix as used, because the prompt was sent to the worker."""
        node, _ = self._cache.match(prompt, prompt_tokens(prompt))
        self._cache.touch(node)

    def add_prompt(self, prompt: Prompt) -> None:
        """Record that the worker has finished a request with this prompt."""
        cache, tokens = self._cache, prompt_tokens(prompt)
        if tokens > cache.capacity:  # a worker refuses prompts longer than its KV pool
            self._on_evict(prompt, tokens)
            return
        node, place = cache.match(prompt, tokens)
        cache.lock(node)
        cache.allocate(tokens - node.depth)
        cache.unlock(node)
        cache.insert(node, prompt, place, tokens)

    def lose(self, prefix: Prompt, tokens: int) -> None:
        """Record that the worker has evicted the last ``tokens`` tokens of a prefix."""
        self._cache.lose(prefix, tokens)

    def clear(self) -> None:
        self._cache.evict(self._cache.capacity)


class AssumedCaches(dict[int, AssumedCache]):
    """The assumed caches of all workers; each eviction calls ``on_evict(worker, prefix, tokens)``.

    ``followed`` holds the workers whose KV events the router reads.
    """

    def __init__(
        self,
        pool_tokens: int,
        followed: Collection[int],
        on_evict: Callable[[int, Prompt, int], None],
    ) -> None:
        super().__init__()
        self._pool_tokens = pool_tokens
        self._followed = set(followed)
        self._on_evict = on_evict

    def renew(self, worker: int) -> None:
        """Assume that a new or restarted worker's cache is empty, without calling ``on_evict``."""
        slack = FOLLOWED_SLACK if worker in self._followed else 1
        self[worker] = AssumedCache(slack * self._pool_tokens, partial(self._on_evict, worker))

    def follow(self, worker: int, follows: bool) -> None:
        """Set whether the router reads a worker's KV events; empty the worker's assumed cache."""
        if worker in self:
            self[worker].clear()
            (self._followed.add if follows else self._followed.discard)(worker)
            self.renew(worker)


log = logging.getLogger(__name__)


class Dispatcher:
    """A dispatcher that sends each request to the worker that the routing policy chooses.

    Workers that are down get no requests. ``pool_tokens`` is the size of each worker's KV memory.
    ``now_s`` returns the time in seconds since any fixed start. ``followed`` holds the workers
    whose KV events the router reads. Workers cache whole pages of ``page_tokens`` tokens.
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
        self.flights: dict[int, dict[RequestInFlight, None]] = {worker: {} for worker in self.up}
        self._numbers = count(workers)
        self._leaving: dict[int, Callable[[], None]] = {}
        self._page_tokens = page_tokens
        self.now_s = now_s
        self._request_ids = count()
        self.ingress: RouterIngress | None = None
        if router.holds:
            self.hold(arrival_queue(router))
        self._caches = AssumedCaches(pool_tokens, followed, self.evicted)
        for worker in range(workers):
            self._caches.renew(worker)

    def hold(self, queue: HoldsRequests, alarm: Alarm | None = None) -> None:
        """Queue requests in ``queue`` before routing; call this method before the first request."""
        self.ingress = RouterIngress(queue, self._send, self.now_s, lambda: bool(self.up), alarm)

    @property
    def under_way(self) -> int:
        """The number of unfinished requests, in the queue, waiting at workers, or running."""
        held = 0 if self.ingress is None else len(self.ingress)
        return sum(map(len, self.flights.values())) + held

    def workers(self) -> Collection[int]:
        """Return the numbers of the available workers in ascending order (``FleetView``)."""
        return sorted(self.up)

    def load(self, worker: int) -> WorkerLoad:
        """Return a worker's unfinished requests and input tokens, as the router counts them."""
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
        """Build a request for routing policies from the prompt's token ids ``ids``."""
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
    ) -> RequestInFlight | None:
        """Route a request; return its state at the worker, or None if it is queued.

        When a queued request is sent, ``on_sent`` gets the request's state; if the request is never
        sent, ``on_sent`` gets a Problem. A retried request is queued again only if the routing
        policy has its own queue. The caller must call ``close_request`` at the end of the request.
        Raises Problem with HTTP status 503 if no worker is available, 429 if the queue refuses the
        request, and 500 if the routing policy fails.
        """
        if not self.up:
            raise unavailable("no worker is available")
        if self.ingress is not None and self.router.holds:
            self.close_request(request)
        elif self.ingress is None or self.ingress.is_sent(request):
            return self._send(request, self.router.route(request, self.now_s()), wish)
        return self.ingress.enter(request, on_sent, wish)

    def is_under_way(self, flight: RequestInFlight) -> bool:
        """Return whether a request is still at its worker, neither finished nor lost."""
        return flight in self.flights.get(flight.worker, ())

    def close_request(self, request: Request, charge: Charge = NOTHING) -> None:
        """Record that the client will receive no more output of the request; charge the client."""
        if self.ingress is not None:
            self.ingress.close_request(request, charge)
            self.release()

    def release(self) -> None:
        """Send the queued requests that may be sent now, for example after a request has ended."""
        if self.ingress is not None:
            self.ingress.release()

    def _send(self, request: Request, routed: int | None, wish: Wish) -> RequestInFlight:
        if routed is None or routed not in self.flights:
            text = f"router {self.router.name}: there is no worker {routed}"
            raise Problem(HTTPStatus.INTERNAL_SERVER_ERROR, text)
        if wish.probe in self.flights and wish.probe not in self._leaving:
            worker = wish.probe
        elif routed in self.up and routed not in wish.avoid:
            worker = routed
        else:  # The worker that the policy chose is down.
            others = self.up.difference(wish.avoid) or self.up
            worker = min(others, key=lambda one: len(self.flights[one]))
        flight = RequestInFlight(request, worker, routed)
        self.flights[worker][flight] = None
        if self.ingress is not None:
            self.ingress.moved(request, worker)
        if self.router.wants_evictions:
            self._caches[routed].touch_prompt(request.prompt)
        return flight

    def streamed(self) -> dict[Request, int]:
        """Return the number of output tokens so far of each answer that streams."""
        flights = (flight for flights in self.flights.values() for flight in flights)
        return {one.request: one.output_tokens for one in flights if one.output_tokens}

    def began(self, flight: RequestInFlight) -> None:
        """Record when the answer to a request begins to stream; later calls have no effect."""
        if flight.first_token_s is None:
            flight.first_token_s = self.now_s()

    def finish(self, flight: RequestInFlight, output_tokens: int, *, failed: bool = False) -> None:
        """Record that a request has ended; ``failed`` means that the worker did no work for it."""
        request = flight.request
        if self.is_under_way(flight):
            del self.flights[flight.worker][flight]
            if self.router.wants_evictions and flight.routed in self._caches:
                self._caches[flight.routed].add_prompt(request.prompt)
        output = Segment(f"output of {request.request_id}", output_tokens)
        if failed:
            self.router.on_failure(request, flight.routed, self.now_s())
        else:
            if flight.first_token_s is not None:
                self.router.on_first_token(request, flight.routed, flight.first_token_s)
            self.router.on_finish(request, flight.routed, output, self.now_s())
        if self.router.wants_evictions and output_tokens:
            # The placeholder ``output`` is removed from the router's tree at once, because no later
            # prompt matches it, and no worker will report that it was evicted.
            self.evicted(flight.routed, (*request.prompt, output), output_tokens)
        self._remove_if_empty(flight.worker)
        self.release()

    def leave(self, worker: int, reason: AttemptFailure = AttemptFailure.HUNG) -> None:
        """Mark a worker as down for the given reason; its unfinished requests are lost."""
        if worker not in self.flights:
            return
        if worker in self.up:
            log.warning("worker %d is down", worker)
        self.eject(worker)
        lost, self.flights[worker] = self.flights[worker], {}
        for flight in lost:
            flight.on_lost(reason)
            if self.ingress is not None:
                self.ingress.moved(flight.request, None)
        self._remove_if_empty(worker)
        if lost:
            self.release()

    def eject(self, worker: int) -> None:
        """Stop sending requests to a worker; its unfinished requests continue."""
        if worker not in self.up:
            return
        self.up.remove(worker)
        # If the policy still chooses the removed worker, ``_send`` replaces the choice.
        with suppress(RunFailed):
            self.router.on_worker_leave(worker, self.now_s())
        self._caches.renew(worker)
        self.release()

    def join(self, worker: int) -> None:
        """Mark a worker as available again, with an empty cache."""
        if not self.may_join(worker):
            return
        self.up.add(worker)
        with suppress(RunFailed):
            self.router.on_worker_join(worker, self.now_s())
        log.info("worker %d is up", worker)
        self.release()

    def may_join(self, worker: int) -> bool:
        """Return whether a worker is unavailable but can become available again."""
        return worker in self.flights and worker not in self.up and worker not in self._leaving

    @property
    def can_change(self) -> bool:
        """Return whether the routing policy allows workers to be added and removed."""
        own = type(self.router.router if isinstance(self.router, Rerouting) else self.router)
        return (
            own.on_worker_join is not Router.on_worker_join
            and own.on_worker_leave is not Router.on_worker_leave
        )

    def add(self, *, followed: bool) -> int:
        """Add a worker, which counts as down until ``join`` is called; return its number."""
        worker = next(self._numbers)
        self.flights[worker] = {}
        self._caches.renew(worker)
        if followed:
            self._caches.follow(worker, True)
        return worker

    def drain(self, worker: int, on_empty: Callable[[], None]) -> None:
        """Stop sending requests to a worker, and remove the worker after its last request."""
        self.eject(worker)
        self._leaving[worker] = on_empty
        self._remove_if_empty(worker)

    def is_draining(self, worker: int) -> bool:
        """Return whether a worker is finishing its last requests before its removal."""
        return worker in self._leaving

    def _remove_if_empty(self, worker: int) -> None:
        if worker in self._leaving and not self.flights[worker]:
            del self.flights[worker]
            del self._caches[worker]
            self._leaving.pop(worker)()

    def lost(self, worker: int, prefix: Prompt, tokens: int) -> None:
        """Handle a KV event: a worker evicted the last ``tokens`` tokens of a prefix."""
        if worker in self._caches:
            self._caches[worker].lose(prefix, tokens)
        self.evicted(worker, prefix, tokens)

    def evicted(self, worker: int, prefix: Prompt, tokens: int) -> None:
        """Tell the routing policy that a worker evicted the last ``tokens`` tokens of a prefix."""
        self.router.on_evict(prefix, tokens, worker, self.now_s())

    def forget_cache(self, worker: int) -> None:
        """Assume that the worker's cache is now empty."""
        if worker in self._caches:
            self._caches[worker].clear()

    def follow(self, worker: int, follows: bool) -> None:
        """Set whether the router reads a worker's KV events, and assume an empty cache."""
        self._caches.follow(worker, follows)
