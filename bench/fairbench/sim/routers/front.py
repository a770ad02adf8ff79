"""The front of a cluster with several routers: their ingresses, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from fairbench.config import ExperimentSpec
from fairbench.core import PS_PER_S
from fairbench.errors import UsageError
from fairbench.schedulers.base import Router
from fairbench.schedulers.gateway.bands import Gateway
from fairbench.schedulers.gateway.queue import HoldsRequests
from fairbench.schedulers.gateway.registry import admission_params
from fairbench.schedulers.params import make_params
from fairbench.schedulers.peers.params import ROUTERS, RoutersParams, Terms
from fairbench.schedulers.peers.totals import Exchanges
from fairbench.schedulers.setup import Setup
from fairbench.sim.clock import Clock
from fairbench.sim.engine.contract import Replica
from fairbench.sim.ingress import Ingress
from fairbench.sim.routers.gossip import Gossip, Ledger, Peer
from fairbench.sim.routers.ingresses import RouterIngresses, SplitRouter, arrivals
from fairbench.streams import stream


def ingresses_of(
    spec: ExperimentSpec,
    router: Router,
    clock: Clock,
    workers: list[Replica],
    setup: Setup,
    queue_of: Callable[[Router, Terms | None], HoldsRequests | None],
) -> RouterIngresses:
    """Return the ingresses of an experiment's routers. Raises UsageError as ``share`` does."""
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
"""A router, and what holds requests before it."""


def share(
    spec: ExperimentSpec, params: RoutersParams, routers: RouterIngresses, fronts: Sequence[Front]
) -> None:
    """Let the routers behind ``routers`` hear of each other.

    Raises UsageError if neither router nor gateway has anything to tell, or with admission control.
    """
    if admission_params(spec.settings).is_on:
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
