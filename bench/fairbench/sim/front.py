"""The construction of a simulated cluster's routers and gateways, and their view of loads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from fairbench.config import ExperimentSpec
from fairbench.core import PS_PER_S, Prompt, Request
from fairbench.engine.clock import ARRIVE, Clock
from fairbench.engine.contract import Replica
from fairbench.errors import RunFailed
from fairbench.hardware.engines import ClusterParams
from fairbench.hardware.timing import ProfileCosts, TimingProfile
from fairbench.schedulers.base import Router, Setup
from fairbench.schedulers.params import make_params
from fairbench.schedulers.registry import build_router
from fairbench.schedulers.views import WorkerLoad
from fairbench.streams import stream
from fairbench.workloads.plan import ClientPlan, tenant_paths_of, weights_of

if TYPE_CHECKING:
    from fairbench.schedulers.gateway.queue import HoldsRequests
    from fairbench.schedulers.peers import Terms
    from fairbench.sim.cluster import Cluster
    from fairbench.sim.ingress import Ingress, RouterIngresses


class SimFleet:
    """A ``FleetView`` that reports loads without delay, unlike real fleets."""

    def __init__(self, workers: Sequence[Replica]) -> None:
        self._workers = workers

    def workers(self) -> Collection[int]:
        return range(len(self._workers))

    def load(self, worker: int) -> WorkerLoad:
        one = self._workers[worker]
        one.sync()
        queued, running, cache = one.queued_count, one.running_count, one.cache
        tokens = cache.capacity - cache.free - cache.evictable
        return WorkerLoad(queued + running, tokens, queued, running, one.saturated, one.room)

    def streamed(self) -> dict[Request, int]:
        """Return the number of output tokens so far of each request that is being decoded."""
        found: dict[Request, int] = {}
        for one in self._workers:
            one.sync()
            batch = one.batch
            found.update((each.request, batch.produced(each)) for each in batch.sequences)
        return found

    def matched_tokens(self, request: Request) -> int:
        """Return the largest number of the request's prompt tokens that any worker has cached."""
        limit = request.input_tokens - 1
        return max(one.cache.common_tokens(request.prompt, limit) for one in self._workers)


def setup_of(
    spec: ExperimentSpec, plans: Sequence[ClientPlan], profile: TimingProfile, pool_tokens: int
) -> Setup:
    """Return the facts about a simulation that schedulers may use.

    Args:
        spec: The experiment to simulate.
        plans: The plans of the run's clients.
        profile: The timing profile of a replica.
        pool_tokens: KV pool of a replica, in tokens.
    """
    weights, paths = weights_of(plans), tenant_paths_of(plans)
    in_places = {paths[name]: one for name, one in weights.items() if name in paths}
    return Setup(
        tuple(plan.client for plan in plans),
        weights | spec.tenant_weights | in_places,
        tenant_paths=paths,
        pool_tokens=pool_tokens,
        costs=ProfileCosts(profile),
        swap_token_s=profile.pool.host_token_ps / PS_PER_S or None,
    )


def router_of(spec: ExperimentSpec) -> Router:
    """Return the router of an experiment, which may combine several routers."""
    if spec.routers is None:
        return _router(spec)
    from fairbench.sim.ingress import split_router

    return split_router([_router(spec) for _ in range(spec.routers)])


def _router(spec: ExperimentSpec) -> Router:
    router = build_router(spec.router, spec.settings, spec.routed_workers)
    if spec.admission is None and spec.gateway is None:
        return router
    from fairbench.schedulers.gateway.rerouting import is_overruled, rerouting

    return rerouting(router) if is_overruled(spec.gateway, spec.admission) else router


def ingress_of(
    spec: ExperimentSpec, router: Router, clock: Clock, workers: list[Replica], setup: Setup
) -> Ingress | RouterIngresses | None:
    """Return the queue in front of the router, or None if requests are routed immediately.

    Raises UsageError if several routers cannot share charges (``share_totals``).
    """
    fleet = SimFleet(workers[: spec.routed_workers])
    # ``streamed`` includes decode workers, to which the router sends no requests.
    seen = replace(setup, fleet=fleet, streamed=SimFleet(workers).streamed)
    admission = spec.admission

    def queue_of(one: Router, terms: Terms | None = None) -> HoldsRequests | None:
        """Return the queue of the gateway or admission control, or None if there is neither."""
        if spec.gateway is None and admission is None:
            return None
        from fairbench.schedulers.gateway.build import build_gateway, with_admission

        queue: HoldsRequests | None = None
        matched = fleet.matched_tokens
        if spec.gateway is not None and spec.saturation is not None:
            names = spec.gateway, spec.saturation, spec.settings
            queue = build_gateway(*names, router=one, setup=seen, matched=matched, terms=terms)
        if admission is not None:
            queue = with_admission(queue, admission, router=one, setup=seen, matched=matched)
        return queue

    if spec.routers is not None:
        from fairbench.sim.ingress import ingresses_of

        return ingresses_of(spec, router, clock, workers, seen, queue_of)
    if (queue := queue_of(router)) is None:
        return None
    from fairbench.sim.ingress import Ingress

    return Ingress(clock, workers, queue)


def reports_of(
    spec: ExperimentSpec, clock: Clock, router: Router, worker: int
) -> Callable[[Prompt, int], None] | None:
    """Return a worker's ``on_evict``, or None if the router needs no eviction reports."""
    if not router.wants_evictions:
        return None
    params = make_params("cluster", ClusterParams, spec.settings)
    rng = stream(spec.seed, f"eviction-news/{worker}")
    return eviction_reports(clock, router, worker, params, rng)


def eviction_reports(
    clock: Clock, router: Router, worker: int, params: ClusterParams, rng: Random
) -> Callable[[Prompt, int], None]:
    """Return an ``on_evict`` function that delays eviction reports and may lose some of them."""
    delay_ps = round(params.eviction_delay_s * PS_PER_S)
    loss = params.eviction_loss or 0.0

    def evicted(prefix: Prompt, tokens: int) -> None:
        if loss and rng.random() < loss:
            return

        def deliver() -> None:
            router.on_evict(prefix, tokens, worker, clock.now_ps / PS_PER_S)

        clock.at(clock.now_ps + delay_ps, ARRIVE, worker, deliver)

    return evicted


def refuse_stall(cluster: Cluster) -> None:
    """Raise RunFailed if requests still wait although the simulation has no further event."""
    if cluster.clock.events or not cluster.running:
        return
    for worker in cluster.workers:
        if count := worker.queued_count:
            raise RunFailed(
                f"local scheduler {worker.scheduler.name}: stopped offering requests; {count:,} "
                f"request{' still waits' if count == 1 else 's still wait'} after "
                f"{cluster.now_s:,.0f} s, although no request runs or arrives any more"
            )
