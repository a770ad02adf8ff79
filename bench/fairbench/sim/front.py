"""The front of a simulated cluster: its router, or several, and what holds requests before them."""

from __future__ import annotations

from dataclasses import replace

from fairbench.config import ExperimentSpec
from fairbench.core import PS_PER_S
from fairbench.schedulers.base import Router
from fairbench.schedulers.gateway.admission.reroute import rerouting
from fairbench.schedulers.gateway.build import admission_params, build_gateway, with_admission
from fairbench.schedulers.gateway.queue import HoldsRequests
from fairbench.schedulers.params import make_params
from fairbench.schedulers.peers.counters import Terms
from fairbench.schedulers.peers.params import ROUTERS, RoutersParams
from fairbench.schedulers.registry import build_router
from fairbench.schedulers.setup import Setup
from fairbench.sim.clock import Clock
from fairbench.sim.engine.replica import Replica
from fairbench.sim.fleet import SimFleet
from fairbench.sim.ingress import Ingress
from fairbench.sim.routers.arrivals import arrivals
from fairbench.sim.routers.doors import Doors
from fairbench.sim.routers.sharing import share
from fairbench.sim.routers.split import SplitRouter, split
from fairbench.streams import stream


def router_of(spec: ExperimentSpec) -> Router:
    """Return an experiment's router, or its several routers combined."""
    if spec.routers is None:
        return _router(spec)
    return split([_router(spec) for _ in range(spec.routers)])


def _router(spec: ExperimentSpec) -> Router:
    router = build_router(spec.router, spec.settings, spec.routed_workers)
    admission = admission_params(spec.settings)
    return rerouting(router) if admission.is_on and admission.reroute else router


def ingress_of(
    spec: ExperimentSpec, router: Router, clock: Clock, workers: list[Replica], setup: Setup
) -> Ingress | Doors | None:
    """Return what holds requests before the ``router`` or routers; None if nothing does.

    Raises UsageError for routers that are to share sums but have none.
    """
    fleet = SimFleet(workers[: spec.routed_workers])
    setup = replace(setup, fleet=fleet)
    if not isinstance(router, SplitRouter):
        queue = _queue(spec, router, setup, fleet)
        return None if queue is None else Ingress(clock, workers, queue)
    params = make_params(ROUTERS, RoutersParams, spec.settings)
    terms = params.terms(spec.dp) if params.shares_sums else None
    queues = [_queue(spec, one, setup, fleet, terms) for one in router.routers]
    ingresses = [
        Ingress.of_router(clock, one, workers) if queue is None else Ingress(clock, workers, queue)
        for one, queue in zip(router.routers, queues, strict=True)
    ]
    arrives = arrivals(params, len(ingresses), setup.clients, spec.seed)
    rng = stream(spec.seed, "router-turns")
    asking_ps = round(2 * params.delay_s * PS_PER_S) if params.form == "ledger" else 0
    doors = Doors(clock, router, ingresses, workers, arrives, rng, asking_ps)
    if params.shares_sums:
        share(spec, params, doors, list(zip(router.routers, queues, strict=True)))
    return doors


def _queue(
    spec: ExperimentSpec,
    router: Router,
    setup: Setup,
    fleet: SimFleet,
    terms: Terms | None = None,
) -> HoldsRequests | None:
    """Return a router's gateway and admission control; None if there is neither."""
    queue: HoldsRequests | None = None
    matched = fleet.matched_tokens
    if spec.gateway is not None and spec.saturation is not None:
        queue = build_gateway(
            spec.gateway,
            spec.saturation,
            spec.settings,
            router=router,
            setup=setup,
            matched=matched,
            terms=terms,
        )
    admission = admission_params(spec.settings)
    if admission.is_on:
        queue = with_admission(queue, admission, router=router, setup=setup, matched=matched)
    return queue
