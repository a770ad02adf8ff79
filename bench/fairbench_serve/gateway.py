"""The gateway in front of the router: polling of workers' loads, and limits for clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from aiohttp import ClientSession

from fairbench.config.cluster import admission_profile
from fairbench.hardware.timing import ProfileCosts
from fairbench.schedulers.base import Setup
from fairbench.schedulers.gateway.build import build_gateway, with_admission
from fairbench.schedulers.gateway.queue import HoldsRequests
from fairbench.schedulers.gateway.registry import admission_params
from fairbench.schedulers.gateway.saturation import AlwaysRoom, Concurrency, Utilization
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.params import make_params
from fairbench.schedulers.views import FleetView
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve.background import Work
from fairbench_serve.config import RouterConfig
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.served_settings import (
    CLIENT_LIMITS,
    CLIENT_RESERVE,
    DEFAULT_RESERVE,
    HEADROOM,
    MOST_REQUESTS,
    SERVED_OUTPUTS,
    served_routers,
)
from fairbench_serve.worker_info import (
    ASSUMED_POOL_TOKENS,
    PolledLoads,
    WorkerInfo,
    headroom_of,
    most_running,
    poll,
)

Follow: TypeAlias = Callable[[int, WorkerAddress], Work]

log = logging.getLogger(__name__)


async def default_limits(
    session: ClientSession,
    workers: Sequence[WorkerAddress],
    info: WorkerInfo,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Return each client's default limits, computed from the slots and memory that workers report.

    Active clients share the request slots and KV memory of the workers, except for a reserve. A
    single active client may use everything except the reserve. The result is empty if ``settings``
    already limit clients or no worker reports its slots or memory.
    """
    if any(name in settings for name in (*CLIENT_LIMITS, CLIENT_RESERVE)):
        return {}
    most = await most_running(session, workers)
    sizes = zip(CLIENT_LIMITS, (None, most, info.pool_tokens), strict=True)
    limits: dict[str, Any] = {name: size for name, size in sizes if size}
    if not limits:
        log.warning(
            "no worker reports its size, so one client may use all workers (set limits with "
            "--gateway and --set)"
        )
        return {}
    told = " and ".join(f"{name.partition('_')[2]} {size}" for name, size in limits.items())
    log.info(
        "a single active client may use %.0f%% of each worker (%s)",
        100 / (1 + DEFAULT_RESERVE),
        told,
    )
    return limits | {CLIENT_RESERVE: DEFAULT_RESERVE}


async def hold_requests(
    config: RouterConfig,
    session: ClientSession,
    dispatcher: Dispatcher,
    info: WorkerInfo,
    weights: Mapping[str, float],
) -> Follow | None:
    """Put the configured gateway and admission control in front of the router.

    ``weights`` may change after the call. Returns a function that takes a worker's number and
    address and starts to poll the worker's load. Returns None if no component uses polled loads.
    """
    settings: dict[str, Any] = {**SERVED_OUTPUTS, **config.settings}
    admission = admission_params(settings)
    policy, saturation = config.gateway, config.saturation
    # A router with peers gets no default limits: clients may also send requests to the peers.
    if config.limits_clients and not config.peers:
        limits = await default_limits(session, config.workers, info, settings)
        settings |= limits
        if limits and policy is None:
            policy, saturation = FCFS.name, AlwaysRoom.name
    if policy is None and not admission.is_on:
        return None
    polls = policy is not None and saturation == Utilization.name
    if policy and saturation == Concurrency.name and MOST_REQUESTS not in settings:
        most = await most_running(session, config.workers)
        settings = _as_workers_say(most, info, settings) | settings
    fleet: FleetView = dispatcher
    follow: Follow | None = None
    pool_tokens = info.pool_tokens or ASSUMED_POOL_TOKENS
    if polls or admission.is_on:
        params = make_params(Utilization.name, Utilization.Params, settings)
        fleet = loads = PolledLoads(dispatcher, pool_tokens, params.stale_s, dispatcher.now_s)

        def follow(worker: int, address: WorkerAddress) -> Work:
            return poll(session, address, worker, loads, params.poll_s)

    router = dispatcher.router
    queue: HoldsRequests | None = None
    setup = Setup(
        weights=weights, pool_tokens=pool_tokens, fleet=fleet, streamed=dispatcher.streamed
    )
    if policy is not None:
        terms = served_routers(settings).terms(len(config.workers)) if config.peers else None
        queue = build_gateway(
            *(policy, saturation, settings), router=router, setup=setup, terms=terms
        )
    if admission.is_on:
        setup = replace(setup, costs=ProfileCosts(admission_profile(admission)))
        queue = with_admission(queue, admission, router=router, setup=setup)
    if queue is not None:
        dispatcher.hold(queue, asyncio.get_running_loop().call_later)
        if polls:
            assert dispatcher.ingress is not None
            dispatcher.ingress.blocked = loads.blocked
    return follow


def _as_workers_say(most: int | None, info: WorkerInfo, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return gateway settings that keep the engines full and their own queues almost empty.

    The user's settings ``given`` override the limits on requests that workers report.
    """
    found: dict[str, Any] = {}
    if most is None:
        most = Concurrency.Params.requests
        log.warning(
            "no worker reports how many requests it runs at once; %d is assumed (set "
            "--max-inflight-per-worker)",
            most,
        )
    else:
        found[HEADROOM] = more = given.get(HEADROOM, headroom_of(most))
        log.info(
            "gateway: a worker runs %d requests at once, and %s more may wait there", most, more
        )
    found[MOST_REQUESTS] = most
    if info.pool_tokens:
        found |= {
            f"{Concurrency.name}.tokens": info.pool_tokens,
            f"{Concurrency.name}.by": "larger",
        }
    return found
