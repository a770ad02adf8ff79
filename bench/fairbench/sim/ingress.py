"""The queues in front of a simulated cluster, with one or several routers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import ceil
from random import Random
from typing import Self

from fairbench.config import ExperimentSpec
from fairbench.core import PS_PER_S, Prompt, Request, Segment
from fairbench.engine.clock import ARRIVE, DECIDE, Clock
from fairbench.engine.contract import Replica
from fairbench.engine.sequence import REFUSED, Sequence
from fairbench.errors import RunFailed, UsageError
from fairbench.schedulers.base import Router, Setup
from fairbench.schedulers.gateway.queue import Gateway, HoldsRequests, QueueHost, arrival_queue
from fairbench.schedulers.params import make_params
from fairbench.schedulers.peers import (
    ROUTERS,
    Exchanges,
    RoutersParams,
    Terms,
    Totals,
    ingress_shares,
)
from fairbench.streams import stream

# sort key of a router's queue, which decides before workers that decide at the same simulated time
BEFORE_WORKERS = -1


class Ingress(QueueHost[Sequence]):
    """The simulator's interface to a ``queue`` in which requests wait for a worker.

    The queue may release requests when a request arrives or ends, and when a worker has decided on
    its next step, but never during an admission pass. If several iterations end at the same time,
    the queue releases requests after all of them. The queue learns of arrivals and ends of requests
    in the order in which they happen.
    """

    def __init__(self, clock: Clock, workers: Many[Replica], queue: HoldsRequests) -> None:
        super().__init__(queue)
        self._clock = clock
        self._workers = workers
        # ``_events`` holds events that were not reported to the queue yet.
        self._events: list[Callable[[], None]] = []
        # ``_due_ps`` is the time (ps) of the next call of ``_release``, or None.
        self._due_ps: int | None = None
        self.before_call: Callable[[], None] | None = None
        # ``turn`` returns the sort key of the next call of ``_release``. Of events at the same
        # simulated time, the event with the lowest key goes first.
        self.turn: Callable[[], int] = lambda: BEFORE_WORKERS
        for worker in workers:
            worker.on_pass = self.soon

    @classmethod
    def of_router(cls, clock: Clock, router: Router, workers: Many[Replica]) -> Self:
        """Return an ``Ingress`` for a router that queues requests itself."""
        return cls(clock, workers, arrival_queue(router))

    def enter(self, sequence: Sequence) -> None:
        self.held[sequence.request] = sequence
        self._events.append(partial(self._take_in, sequence))
        self.soon()

    def finished(self, sequence: Sequence) -> None:
        if not self.end_sent(sequence.request):
            return
        produced = 0 if sequence.status == REFUSED else sequence.produced
        now_s = self._clock.now_ps / PS_PER_S
        self._events.append(partial(self.queue.finish, sequence.request, produced, now_s))
        self.soon()

    def sequences(self) -> Iterator[Sequence]:
        """Yield the queued requests in order of arrival."""
        return iter(self.held.values())

    def soon(self) -> None:
        """Schedule ``_release`` at the current time, after the events that are already due."""
        if self.held or self._events:
            self._call_at(self._clock.now_ps)

    def _call_at(self, time_ps: int) -> None:
        if self._due_ps is None or not self._clock.now_ps <= self._due_ps <= time_ps:
            self._due_ps = time_ps
            self._clock.at(time_ps, DECIDE, self.turn(), self._release)

    def _release(self) -> None:
        now_ps = self._clock.now_ps
        if now_ps != self._due_ps:
            return
        self._due_ps = None
        events, self._events = self._events, []
        for tell in events:
            tell()
        if self.before_call is not None:
            self.before_call()
        now_s = now_ps / PS_PER_S
        self.release_queue(now_s, self._send, self._refuse)
        wake_s = self.queue.wake_s(now_s)
        if wake_s is not None:
            self._call_at(max(now_ps + 1, ceil(wake_s * PS_PER_S)))

    def _take_in(self, sequence: Sequence) -> None:
        if not self.queue.enter(sequence.request, self._clock.now_ps / PS_PER_S):
            self._refuse(sequence.request)

    def _refuse(self, request: Request) -> None:
        self.held.pop(request).refuse()

    def _send(self, request: Request, worker: int) -> None:
        if not 0 <= worker < len(self._workers):
            raise RunFailed(f"there is no worker {worker}")
        sequence = self.held.pop(request)
        sequence.routed_ps = self._clock.now_ps
        self._workers[worker].submit(sequence)


@dataclass(frozen=True, slots=True)
class Peer:
    """A router that exchanges sums of charges with peers; ``recheck`` retries queued requests."""

    parts: Many[Exchanges]
    recheck: Callable[[], None]


class Gossip:
    """A gossip protocol: each router periodically sends its sums of charges to all other routers.

    The routers send messages at different times within each interval of ``every_s`` seconds.
    """

    def __init__(self, clock: Clock, peers: Many[Peer], params: RoutersParams, rng: Random) -> None:
        self._clock = clock
        self._peers = peers
        self._params = params
        self._rng = rng
        self._every_ps = round(params.every_s * PS_PER_S)
        self.unheard = Unheard(peers)
        for number in range(len(peers)):
            self._send_totals_at((number + 1) * self._every_ps // len(peers), number)

    def _send_totals_at(self, time_ps: int, number: int) -> None:
        self._clock.at(time_ps, ARRIVE, 0, partial(self._send_totals, number))

    def _send_totals(self, number: int) -> None:
        now_ps, params = self._clock.now_ps, self._params
        totals = [part.export_totals() for part in self._peers[number].parts]
        delay_ps = round(params.delay_s * PS_PER_S)
        for other in range(len(self._peers)):
            if other == number:
                continue
            lost, repeated = self._rng.random(), self._rng.random()
            hear = partial(self._receive_totals, other, str(number), totals)
            if lost >= params.lost:
                self._clock.at(now_ps + delay_ps, ARRIVE, 0, hear)
            if repeated < params.repeated:
                self._clock.at(now_ps + delay_ps + self._every_ps // 2, ARRIVE, 0, hear)
        self._send_totals_at(now_ps + self._every_ps, number)

    def _receive_totals(self, number: int, origin: str, totals: Many[Totals]) -> None:
        self.unheard.measure(number)
        now_s = self._clock.now_ps / PS_PER_S
        for part, one in zip(self._peers[number].parts, totals, strict=True):
            part.merge_totals(origin, one, now_s)
        self._peers[number].recheck()


class SumLedger:
    """A service that stores all routers' charges, and updates a router before each decision."""

    def __init__(self, clock: Clock, peers: Many[Peer]) -> None:
        self._clock = clock
        self._peers = peers

    def update(self, number: int) -> None:
        """Send the charges of all other routers to router ``number``, before its next decision."""
        now_s = self._clock.now_ps / PS_PER_S
        for origin, other in enumerate(self._peers):
            if origin != number:
                for mine, theirs in zip(self._peers[number].parts, other.parts, strict=True):
                    mine.merge_totals(str(origin), theirs.export_totals(), now_s)


class Unheard:
    """The largest sum of charges to a client, in tokens, that a router has not yet received.

    A router's unknown charges grow (except for refunds) until the router receives a message, so
    they are measured just before each message.
    """

    def __init__(self, peers: Many[Peer]) -> None:
        self._peers = peers
        self.tokens = 0.0

    def measure(self, number: int) -> None:
        """Measure the charges unknown to router ``number`` just before it receives a message."""
        for place, part in enumerate(self._peers[number].parts):
            known = part.heard_totals()
            unheard: dict[tuple[str, int], float] = {}
            for origin, other in enumerate(self._peers):
                if origin == number:
                    continue
                then = known[str(origin)].charged if str(origin) in known else {}
                for client, of in other.parts[place].charged_totals().items():
                    for where, charged in of.items():
                        more = charged - then.get(client, {}).get(where, 0.0)
                        unheard[client, where] = unheard.get((client, where), 0.0) + more
            self.tokens = max(self.tokens, *unheard.values(), 0.0)


def split_router(routers: Many[Router]) -> SplitRouter:
    """Combine several routers of the same class into one router."""
    declared = {
        name: getattr(routers[0], name)
        for name in ("name", "wants_evictions", "holds", "cluster_theorems")
    }
    made: SplitRouter = type("SplitRouter", (SplitRouter,), declared)(routers)
    return made


class SplitRouter(Router):
    """Several routers that act as a single router, created by ``split_router``.

    ``owners`` maps each unfinished request to the number of its router.
    """

    def __init__(self, routers: Many[Router]) -> None:
        self.routers = routers
        self.owners: dict[Request, int] = {}

    def prepare(self, setup: Setup) -> None:
        self.setup = setup
        for router in self.routers:
            router.prepare(setup)

    def route(self, request: Request, now_s: float) -> int | None:
        return self._owner(request).route(request, now_s)

    def on_first_token(self, request: Request, worker: int, at_s: float) -> None:
        self._owner(request).on_first_token(request, worker, at_s)

    @property
    def wants_gpu_time(self) -> bool:
        return any(router.wants_gpu_time for router in self.routers)

    def on_gpu_time(self, request: Request, worker: int, gpu_s: float) -> None:
        self._owner(request).on_gpu_time(request, worker, gpu_s)

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        self.routers[self.owners.pop(request)].on_finish(request, worker, output, now_s)

    def on_evict(self, prefix: Prompt, evicted_tokens: int, worker: int, now_s: float) -> None:
        for router in self.routers:
            router.on_evict(prefix, evicted_tokens, worker, now_s)

    def _owner(self, request: Request) -> Router:
        return self.routers[self.owners[request]]


Arrives = Callable[[Request], int]
"""A function that returns the number of the router at which a request arrives.

The simulator calls an ``Arrives`` function once per request, in order of arrival.
"""


def arrival_routers(params: RoutersParams, number: int, clients: Many[str], seed: int) -> Arrives:
    """Return a function that draws the router at which a client's request arrives."""
    bounds = list(accumulate(ingress_shares(params.skew, number)))
    if params.form == "sticky":
        homes = {client: _drawn(stream(0, f"home/{client}"), bounds) for client in clients}
        return lambda request: homes[request.client]
    turned = params.favourite == "each"
    favourites = {client: place if turned else 0 for place, client in enumerate(clients)}
    draws = {client: stream(seed, f"ingress/{client}") for client in clients}

    def arrives(request: Request) -> int:
        client = request.client
        return (favourites[client] + _drawn(draws[client], bounds)) % number

    return arrives


def _drawn(rng: Random, bounds: Many[float]) -> int:
    """Draw an index at random; ``bounds`` are the indices' cumulative probabilities."""
    drawn = rng.random()
    return next((at for at, bound in enumerate(bounds) if drawn < bound), len(bounds) - 1)


class RouterIngresses:
    """The queues of several routers, which act in random order if they act at the same time.

    If routers dispatched in a fixed order, the first router would always take the free capacity.
    With ``form=ledger``, a router first asks the service that stores all charges, so a request
    enters its router's queue ``asking_ps`` picoseconds after its arrival.
    """

    def __init__(
        self,
        clock: Clock,
        router: SplitRouter,
        ingresses: Many[Ingress],
        workers: Many[Replica],
        arrives: Arrives,
        rng: Random,
        asking_ps: int = 0,
    ) -> None:
        self.clock = clock
        self._router = router
        self.ingresses = ingresses
        self._arrives = arrives
        self._asking_ps = asking_ps
        self.gossip: Gossip | None = None
        self._asking: dict[Request, Sequence] = {}
        for ingress in ingresses:
            # A router's queue has a negative sort key, so it decides before all workers that decide
            # at the same simulated time.
            ingress.turn = lambda: -rng.randrange(1, 2**20)
        for worker in workers:
            worker.on_pass = self._passed

    def enter(self, sequence: Sequence) -> None:
        number = self._arrives(sequence.request)
        self._router.owners[sequence.request] = number
        if not self._asking_ps:
            self.ingresses[number].enter(sequence)
            return
        self._asking[sequence.request] = sequence
        self.clock.at(
            self.clock.now_ps + self._asking_ps, ARRIVE, 0, partial(self._asked, sequence)
        )

    def _asked(self, sequence: Sequence) -> None:
        del self._asking[sequence.request]
        self.ingresses[self._router.owners[sequence.request]].enter(sequence)

    def finished(self, sequence: Sequence) -> None:
        owners = self._router.owners
        self.ingresses[owners[sequence.request]].finished(sequence)
        # ``on_finish`` is not called for a request that reached no router.
        if sequence.worker < 0:
            del owners[sequence.request]

    def sequences(self) -> Iterator[Sequence]:
        """Yield each router's queued requests in order of arrival."""
        yield from self._asking.values()
        for ingress in self.ingresses:
            yield from ingress.sequences()

    def _passed(self) -> None:
        for ingress in self.ingresses:
            ingress.soon()


def ingresses_of(
    spec: ExperimentSpec,
    router: Router,
    clock: Clock,
    workers: list[Replica],
    setup: Setup,
    queue_of: Callable[[Router, Terms | None], HoldsRequests | None],
) -> RouterIngresses:
    """Return an ``Ingress`` for each router of an experiment.

    Raises UsageError if the routers cannot share charges (``share_totals``).
    """
    assert isinstance(router, SplitRouter), "several routers are split"
    params = make_params(ROUTERS, RoutersParams, spec.settings)
    terms = params.terms(spec.dp) if params.shares_sums else None
    queues = [queue_of(one, terms) for one in router.routers]
    ingresses = [
        Ingress.of_router(clock, one, workers) if queue is None else Ingress(clock, workers, queue)
        for one, queue in zip(router.routers, queues, strict=True)
    ]
    arrives = arrival_routers(params, len(ingresses), setup.clients, spec.seed)
    rng = stream(spec.seed, "router-turns")
    asking_ps = round(2 * params.delay_s * PS_PER_S) if params.form == "ledger" else 0
    front = RouterIngresses(clock, router, ingresses, workers, arrives, rng, asking_ps)
    if params.shares_sums:
        share_totals(spec, params, front, list(zip(router.routers, queues, strict=True)))
    return front


Front = tuple[Router, HoldsRequests | None]
"""A router and the queue in front of it."""


def share_totals(
    spec: ExperimentSpec, params: RoutersParams, routers: RouterIngresses, fronts: Many[Front]
) -> None:
    """Let several routers exchange the totals of their charges to clients.

    Raises UsageError if neither router nor gateway has counters to share, or if the experiment has
    admission control.
    """
    if spec.admission is not None:
        raise UsageError(
            f"routers.form = {params.form!r}: cannot be combined with admission.policy"
        )
    peers = [
        Peer(_sharing_parts(spec, params, front), ingress.soon)
        for front, ingress in zip(fronts, routers.ingresses, strict=True)
    ]
    for peer in peers:
        for part in peer.parts:
            part.join_peers()
    if params.form == "exchange":
        routers.gossip = Gossip(routers.clock, peers, params, stream(spec.seed, "gossip"))
        return
    ledger = SumLedger(routers.clock, peers)
    for number, ingress in enumerate(routers.ingresses):
        ingress.before_call = partial(ledger.update, number)


def _sharing_parts(spec: ExperimentSpec, params: RoutersParams, front: Front) -> list[Exchanges]:
    router, queue = front
    found: list[Exchanges] = [router] if isinstance(router, Exchanges) else []
    if isinstance(queue, Gateway) and queue.shares_counters:
        found.append(queue)
    if not found:
        before = f" or the gateway {spec.gateway}" if spec.gateway else ""
        raise UsageError(
            f"routers.form = {params.form!r}: the router {spec.router}{before} has no "
            "counters to share; choose the form independent or sticky, the router d2lpm, "
            "or the gateway vtc without tenants"
        )
    return found
