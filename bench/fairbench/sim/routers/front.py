"""The front of a cluster with several routers: their ingresses, and what they share."""

from __future__ import annotations

from collections.abc import Callable

from fairbench.config import ExperimentSpec
from fairbench.core import PS_PER_S
from fairbench.schedulers.base import Router
from fairbench.schedulers.gateway.queue import HoldsRequests
from fairbench.schedulers.params import make_params
from fairbench.schedulers.peers.params import ROUTERS, RoutersParams, Terms
from fairbench.schedulers.setup import Setup
from fairbench.sim.clock import Clock
from fairbench.sim.engine.replica import Replica
from fairbench.sim.ingress import Ingress
from fairbench.sim.routers.ingresses import RouterIngresses, arrivals
from fairbench.sim.routers.sharing import share
from fairbench.sim.routers.split import SplitRouter
from fairbench.streams import stream


def ingresses_of(
    spec: ExperimentSpec,
    router: Router,
    clock: Clock,
    workers: list[Replica],
    setup: Setup,
    queue_of: Callable[[Router, Terms | None], HoldsRequests | None],
) -> RouterIngresses:
    """Return the ingresses of an experiment's routers; ``queue_of`` makes the queue of each.

    Raises UsageError for routers that are to share sums but have none.
    """
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
