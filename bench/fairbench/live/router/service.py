"""The router's service: all that runs in its process, from its start to its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

from aiohttp import ClientSession, ClientTimeout, TCPConnector

from fairbench.live.kv_events.blocks import BlockIndex
from fairbench.live.kv_events.subscriber import Subscriber
from fairbench.live.router.access import Access
from fairbench.live.router.attempts import Attempts
from fairbench.live.router.breaker import Breakers
from fairbench.live.router.config import RouterConfig
from fairbench.live.router.dispatcher import Dispatcher
from fairbench.live.router.gateway import hold_requests
from fairbench.live.router.health import Health
from fairbench.live.router.metrics import RouterMetrics
from fairbench.live.router.proxy import Proxy
from fairbench.live.router.text_tokens import TextTokens
from fairbench.live.router.worker_info import (
    ASSUMED_POOL_TOKENS,
    WorkerFacts,
    WorkerInfo,
    ask_workers,
    warn_of_others,
)
from fairbench.schedulers.base import Router, Setup

# Uvicorn, which serves SGLang, closes a connection that is idle for 5 s.
KEEP_ALIVE_S = 4.0
CONNECT_TIMEOUT_S = 10.0
FIRST_CHECK_S = 2.0  # in which a worker has to be healthy to take part from the start

log = logging.getLogger(__name__)


@asynccontextmanager
async def running(
    config: RouterConfig, router: Router, text: TextTokens, metrics: RouterMetrics
) -> AsyncIterator[Proxy]:
    """The proxy, with health checks and KV events followed beside it."""
    async with _new_session() as session:
        info = await ask_workers(session, config.workers)
        access = Access(config, time.monotonic)
        dispatcher = _new_dispatcher(config, router, info, access.weights)
        warn_of_others(config.local, dict(enumerate(info.locals)))
        facts = WorkerFacts(session, config.workers, info, config)
        breakers = Breakers(len(config.workers), time.monotonic)
        subscribers = _subscribers(config, dispatcher)
        polling = await hold_requests(config, session, dispatcher, info, access.weights)
        metrics.watch(dispatcher, subscribers)

        async def returned(worker: int) -> None:
            await facts.learn(worker)
            if worker in subscribers:
                subscribers[worker].restart()

        health = Health(config.workers, dispatcher, config.health_timeout_s, breakers, returned)
        attempts = Attempts(config.workers, session, dispatcher, health, breakers, metrics)
        async with (
            aclosing(health),
            _background(subscriber.run() for subscriber in subscribers.values()),
        ):
            await health.begin(FIRST_CHECK_S)
            watching = [health.watch(config.health_interval_s), access.watch(), *polling]
            async with _background(watching):
                yield Proxy(config, session, dispatcher, health, attempts, facts, text, access)


def _new_session() -> ClientSession:
    return ClientSession(
        connector=TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        # Never a total: a request may wait long. Health checks find a worker that hangs.
        timeout=ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        auto_decompress=False,
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


def _subscribers(config: RouterConfig, dispatcher: Dispatcher) -> dict[int, Subscriber]:
    """One for each worker that publishes KV events, if the router has any use for them."""
    if not dispatcher.router.wants_evictions:
        return {}
    return {
        number: Subscriber(
            worker,
            BlockIndex(
                partial(dispatcher.evicted, number), partial(dispatcher.forget_cache, number)
            ),
            on_follow=partial(dispatcher.follow, number),
        )
        for number, worker in enumerate(config.workers)
        if worker.kv_events is not None
    }


@asynccontextmanager
async def _background(work: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Tasks that run until the block ends. None of them is meant to end before."""
    tasks = [asyncio.create_task(one) for one in work]
    for task in tasks:
        task.add_done_callback(_complain)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a task of the router has ended", exc_info=error)
