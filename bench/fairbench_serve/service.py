"""The router's service: everything that runs in its process, from start to end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import NamedTuple

from aiohttp import ClientSession, ClientTimeout, TCPConnector

from fairbench.live.processes.addresses import WorkerAddress
from fairbench.schedulers.base import Router, Setup
from fairbench_serve.access import Access
from fairbench_serve.admin import Membership
from fairbench_serve.attempts import Attempts, Sessions
from fairbench_serve.background import (
    WorkerTasks,
    background,
    give_back_freed_memory,
    keep_large_buffers_apart,
)
from fairbench_serve.breaker import Breakers, Refusals
from fairbench_serve.config import RouterConfig
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.gateway import hold_requests
from fairbench_serve.health import Health, Progress
from fairbench_serve.kv_events.blocks import BlockIndex
from fairbench_serve.kv_events.subscriber import Subscriber
from fairbench_serve.metrics import RouterMetrics
from fairbench_serve.peers import Peering, peering_of, telling
from fairbench_serve.prompts import TextTokens
from fairbench_serve.proxy import Proxy
from fairbench_serve.traces import Traces
from fairbench_serve.worker_info import (
    ASSUMED_POOL_TOKENS,
    WorkerFacts,
    WorkerInfo,
    ask_workers,
    warn_of_others,
)

# Uvicorn, which serves SGLang and vLLM, closes a connection that is idle for 5 s. On a busy machine
# the router may still notice this too late (attempts.py).
KEEP_ALIVE_S = 4.0
CONNECT_TIMEOUT_S = 10.0
FIRST_CHECK_S = 2.0  # seconds within which a worker must be healthy to take part from the start


class Service(NamedTuple):
    """The parts that serve requests, know workers and requests, and change workers."""

    proxy: Proxy
    dispatcher: Dispatcher
    membership: Membership
    peering: Peering | None


@asynccontextmanager
async def running(
    config: RouterConfig, router: Router, text: TextTokens, metrics: RouterMetrics, traces: Traces
) -> AsyncIterator[Service]:
    """Run the service, together with health checks and the KV event subscribers."""
    keep_large_buffers_apart()
    workers = list(config.workers)
    async with (
        _new_session(TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)) as session,
        _new_session(TCPConnector(limit=0, force_close=True)) as fresh,
        aclosing(WorkerTasks()) as tasks,
    ):
        info = await ask_workers(session, workers)
        access = Access(config, time.monotonic)
        dispatcher = _new_dispatcher(config, router, info, access.weights)
        warn_of_others(config.local, dict(enumerate(info.locals)))
        facts = WorkerFacts(session, workers, info, config)
        breakers, refusals = Breakers(len(workers), time.monotonic), Refusals(time.monotonic)
        poll = await hold_requests(config, session, dispatcher, info, access.weights)
        access.on_weights = dispatcher.router.on_weights
        peering = peering_of(config, dispatcher)
        subscribers: dict[int, Subscriber] = {}
        metrics.watch(dispatcher, subscribers, access.weights)

        def subscribe(worker: int) -> None:
            subscriber = _subscriber(worker, workers[worker], dispatcher)
            if subscriber is not None:
                subscribers[worker] = subscriber
                tasks.start(worker, subscriber.run())

        def follow_load(worker: int) -> None:
            if poll is not None:
                tasks.start(worker, poll(worker, workers[worker]))

        def follow(worker: int) -> None:
            subscribe(worker)
            follow_load(worker)

        def unfollow(worker: int) -> None:
            tasks.stop(worker)
            subscribers.pop(worker, None)

        async def returned(worker: int) -> None:
            refusals.forget(worker)
            await facts.learn(worker)
            if worker in subscribers:
                subscribers[worker].restart()

        health = Health(
            *(workers, dispatcher, config.health_timeout_s, breakers, returned), config.router_id
        )
        sessions = Sessions(session, fresh)
        progress = Progress(workers, dispatcher, session, config.stall_s, health.stalled)
        attempts = Attempts(
            *(workers, sessions, dispatcher, health, breakers, refusals, metrics, progress)
        )
        membership = Membership(workers, dispatcher, health, breakers, follow, unfollow)
        async with aclosing(health):
            for worker in range(len(workers)):
                subscribe(worker)
            await health.begin(FIRST_CHECK_S)
            for worker in range(len(workers)):
                follow_load(worker)
            beside = [
                health.watch(config.health_interval_s),
                progress.watch(),
                access.watch(),
                give_back_freed_memory(),
                *telling(config, peering, session),
            ]
            async with background(beside):
                proxy = Proxy(
                    *(config, workers, session, dispatcher, health, attempts, facts, text, access),
                    traces,
                )
                yield Service(proxy, dispatcher, membership, peering)


def _new_session(connector: TCPConnector) -> ClientSession:
    return ClientSession(
        connector=connector,
        # There is no total limit: a request may wait long. Health checks find a worker that hangs.
        timeout=ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        auto_decompress=False,
        headers={"Accept-Encoding": "identity"},  # workers' pages are read undecoded, too
    )


def _new_dispatcher(
    config: RouterConfig, router: Router, info: WorkerInfo, weights: Mapping[str, float]
) -> Dispatcher:
    workers = config.workers
    dispatcher = Dispatcher(
        router,
        len(workers),
        info.pool_tokens or ASSUMED_POOL_TOKENS,
        _clock(),
        page_tokens=info.page_tokens,
        followed={n for n, worker in enumerate(workers) if worker.kv_events is not None},
    )
    router.prepare(Setup(weights=weights, pool_tokens=info.pool_tokens or 0, fleet=dispatcher))
    return dispatcher


def _clock() -> Callable[[], float]:
    start = time.monotonic()
    return lambda: time.monotonic() - start


def _subscriber(worker: int, address: WorkerAddress, dispatcher: Dispatcher) -> Subscriber | None:
    """Return the subscriber of a worker's KV events, if they exist and the router needs them."""
    if address.kv_events is None or not dispatcher.router.wants_evictions:
        return None
    lost, cleared = dispatcher.lost, dispatcher.forget_cache
    return Subscriber(
        address,
        BlockIndex(partial(lost, worker), partial(cleared, worker)),
        on_follow=partial(dispatcher.follow, worker),
    )
