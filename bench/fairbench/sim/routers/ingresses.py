"""Several routers before one simulated fleet: their ingresses, arrivals, and shared state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from functools import partial
from itertools import accumulate
from random import Random

from fairbench.config import ExperimentSpec
from fairbench.core import PS_PER_S, Prompt, Request, Segment
from fairbench.errors import UsageError
from fairbench.schedulers.base import Router
from fairbench.schedulers.gateway.bands import Gateway
from fairbench.schedulers.gateway.queue import HoldsRequests
from fairbench.schedulers.params import make_params
from fairbench.schedulers.peers.params import ROUTERS, RoutersParams, Terms, shares
from fairbench.schedulers.peers.totals import Exchanges
from fairbench.schedulers.setup import Setup
from fairbench.sim.clock import ARRIVE, Clock
from fairbench.sim.engine.contract import Replica
from fairbench.sim.ingress import Ingress
from fairbench.sim.routers.gossip import Gossip, Ledger, Peer
from fairbench.sim.sequence import Sequence
from fairbench.streams import stream


def split(routers: Many[Router]) -> SplitRouter:
    """Return several routers of one kind, combined into a single router."""
    declared = {
        name: getattr(routers[0], name)
        for name in ("name", "wants_evictions", "holds", "cluster_theorems")
    }
    made: SplitRouter = type("SplitRouter", (SplitRouter,), declared)(routers)
    return made


class SplitRouter(Router):
    """Several routers as one router, created by ``split``.

    The router that admits a request records it (``owners``).
    """

    def __init__(self, routers: Many[Router]) -> None:
        self.routers = routers
        self.owners: dict[Request, int] = {}  # routers of requests in progress

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
"""Returns the router at which a request arrives; called once for each, in order of arrival."""


def arrivals(params: RoutersParams, number: int, clients: Many[str], seed: int) -> Arrives:
    """Return a function from a request to its router, independent of other clients."""
    bounds = list(accumulate(shares(params.skew, number)))
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
    """Draw the index of a part, given the upper ``bounds`` of the parts."""
    drawn = rng.random()
    return next((at for at, bound in enumerate(bounds) if drawn < bound), len(bounds) - 1)


class RouterIngresses:
    """The ``Ingress`` of a cluster with several routers, in random order at each instant.

    With a fixed order, the first router would always take the room that the others saw at the same
    moment. A router needs ``asking_ps`` to query the facts about a request.
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
        self.gossip: Gossip | None = None  # the exchange of the routers' totals, if there is one
        self._asking: dict[Request, Sequence] = {}
        for ingress in ingresses:
            ingress.turn = lambda: -rng.randrange(1, 2**20)  # before the turns of all workers
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
        if sequence.worker < 0:  # its router was never called, so it gets no event
            del owners[sequence.request]

    def held(self) -> Iterator[Sequence]:
        """Yield the queued requests, in order of arrival at each router."""
        yield from self._asking.values()
        for ingress in self.ingresses:
            yield from ingress.held()

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
    """Return the ingresses of an experiment's routers. Raises the errors of ``share``."""
    assert isinstance(router, SplitRouter), "several routers are split"
    params = make_params(ROUTERS, RoutersParams, spec.settings)
    terms = params.terms(spec.dp) if params.shares_sums else None
    queues = [queue_of(one, terms) for one in router.routers]
    ingresses = [
        Ingress.of_router(clock, one, workers) if queue is None else Ingress(clock, workers, queue)
        for one, queue in zip(router.routers, queues, strict=True)
    ]
    arrives = arrivals(params, len(ingresses), setup.clients, spec.seed)
    rng = stream(spec.seed, "router-turns")
    asking_ps = round(2 * params.delay_s * PS_PER_S) if params.form == "ledger" else 0
    front = RouterIngresses(clock, router, ingresses, workers, arrives, rng, asking_ps)
    if params.shares_sums:
        share(spec, params, front, list(zip(router.routers, queues, strict=True)))
    return front


Front = tuple[Router, HoldsRequests | None]
"""A router, and the queue before it."""


def share(
    spec: ExperimentSpec, params: RoutersParams, routers: RouterIngresses, fronts: Many[Front]
) -> None:
    """Let the routers behind ``routers`` exchange their totals.

    Raises UsageError if neither router nor gateway has counters to share, or with admission
    control.
    """
    if spec.admission is not None:
        raise UsageError(
            f"routers.form = {params.form!r}: cannot be combined with admission.policy"
        )
    peers = [
        Peer(_parts(spec, params, front), ingress.soon)
        for front, ingress in zip(fronts, routers.ingresses, strict=True)
    ]
    for peer in peers:
        for part in peer.parts:
            part.join_peers()
    if params.form == "exchange":
        routers.gossip = Gossip(routers.clock, peers, params, stream(spec.seed, "gossip"))
        return
    ledger = Ledger(routers.clock, peers)
    for number, ingress in enumerate(routers.ingresses):
        ingress.before = partial(ledger.ask, number)


def _parts(spec: ExperimentSpec, params: RoutersParams, front: Front) -> list[Exchanges]:
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
