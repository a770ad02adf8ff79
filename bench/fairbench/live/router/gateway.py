"""The gateway before the router, as its configuration has it, with what its detector looks at."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from aiohttp import ClientSession

from fairbench.config.gateway import MOST_REQUESTS
from fairbench.live.processes.addresses import WorkerAddress
from fairbench.live.router.background import Work
from fairbench.live.router.config import RouterConfig
from fairbench.live.router.dispatcher import Dispatcher
from fairbench.live.router.ingress import Ringing
from fairbench.live.router.loads import PolledLoads, most_running, poll
from fairbench.live.router.worker_info import ASSUMED_POOL_TOKENS, WorkerInfo
from fairbench.schedulers.gateway.build import build_gateway
from fairbench.schedulers.gateway.saturation.concurrency import Concurrency
from fairbench.schedulers.gateway.saturation.utilization import Utilization
from fairbench.schedulers.params import make_params
from fairbench.schedulers.setup import Setup
from fairbench.schedulers.views import FleetView

Follow: TypeAlias = Callable[[int, WorkerAddress], Work]

log = logging.getLogger(__name__)


async def hold_requests(
    config: RouterConfig,
    session: ClientSession,
    dispatcher: Dispatcher,
    info: WorkerInfo,
    weights: Mapping[str, float],
) -> Follow | None:
    """Put the gateway before the router, if there is to be one.

    ``weights`` may change meanwhile. Returns what has to run for each worker, by its number and
    address, None for nothing.
    """
    if config.gateway is None:
        return None
    settings = dict(config.settings)
    if config.saturation == Concurrency.name and MOST_REQUESTS not in settings:
        settings = _as_workers_say(await most_running(session, config.workers), info) | settings
    fleet: FleetView = dispatcher
    follow: Follow | None = None
    pool_tokens = info.pool_tokens or ASSUMED_POOL_TOKENS
    if config.saturation == Utilization.name:
        params = make_params(Utilization.name, Utilization.Params, settings)
        fleet = loads = PolledLoads(dispatcher, pool_tokens, params.stale_s, dispatcher.now_s)

        def follow(worker: int, address: WorkerAddress) -> Work:
            return poll(session, address, worker, loads, params.poll_s)

    gateway = build_gateway(
        config.gateway,
        config.saturation,
        settings,
        router=dispatcher.router,
        setup=Setup(weights=weights, pool_tokens=pool_tokens, fleet=fleet),
    )
    dispatcher.hold(gateway, _alarm)
    return follow


def _as_workers_say(most: int | None, info: WorkerInfo) -> dict[str, Any]:
    """Settings under which the engines have what they can run, and no queue of their own."""
    if most is None:
        most = Concurrency.Params.requests
        log.warning(
            "no worker says how many requests it runs at once; assumed: %d "
            "(--max-inflight-per-worker)",
            most,
        )
    else:
        log.info("gateway: %d requests at a worker at once", most)
    found: dict[str, Any] = {MOST_REQUESTS: most}
    if info.pool_tokens:
        found |= {
            f"{Concurrency.name}.tokens": info.pool_tokens,
            f"{Concurrency.name}.by": "larger",
        }
    return found


def _alarm(delay_s: float, ring: Callable[[], None]) -> Ringing:
    return asyncio.get_running_loop().call_later(delay_s, ring)
