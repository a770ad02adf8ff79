"""The router's service: all that runs in its process, from its start to its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector

from fairbench.live.kv_events.blocks import BlockIndex
from fairbench.live.kv_events.subscriber import Subscriber
from fairbench.live.router.config import RouterConfig
from fairbench.live.router.dispatcher import Dispatcher
from fairbench.live.router.health import Health
from fairbench.live.router.metrics import RouterMetrics
from fairbench.live.router.proxy import Proxy
from fairbench.live.router.text_tokens import TextTokens
from fairbench.schedulers.base import Router, Setup

# Uvicorn, which serves SGLang, closes a connection that is idle for 5 s.
KEEP_ALIVE_S = 4.0
CONNECT_TIMEOUT_S = 10.0
FIRST_CHECK_S = 2.0  # in which a worker has to be healthy to take part from the start
# Of workers that do not say: about what an 8B model leaves of 80 GB.
ASSUMED_POOL_TOKENS = 400_000
ASK_TIMEOUT = ClientTimeout(total=5.0)

log = logging.getLogger(__name__)


@asynccontextmanager
async def running(
    config: RouterConfig, router: Router, text: TextTokens, metrics: RouterMetrics
) -> AsyncIterator[Proxy]:
    """The proxy, with health checks and KV events followed beside it."""
    urls = [worker.url for worker in config.workers]
    async with _new_session() as session:
        dispatcher = await _new_dispatcher(session, config, router)
        subscribers = _subscribers(config, dispatcher)
        metrics.watch(dispatcher, subscribers)
        health = Health(urls, dispatcher, config.health_timeout_s, partial(_returned, subscribers))
        async with (
            aclosing(health),
            _background(subscriber.run() for subscriber in subscribers.values()),
        ):
            await health.begin(FIRST_CHECK_S)
            async with _background([health.watch(config.health_interval_s)]):
                yield Proxy(config, session, dispatcher, health, metrics, text)


def _new_session() -> ClientSession:
    return ClientSession(
        connector=TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        # Never a total: a request may wait long. Health checks find a worker that hangs.
        timeout=ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        auto_decompress=False,
    )


async def _new_dispatcher(
    session: ClientSession, config: RouterConfig, router: Router
) -> Dispatcher:
    workers = config.workers
    tokens, page_tokens = await _sizes(session, [worker.url for worker in workers])
    if tokens is None:
        log.warning("no worker says how large its KV pool is; assumed: %d", ASSUMED_POOL_TOKENS)
    start = time.monotonic()
    dispatcher = Dispatcher(
        router,
        len(workers),
        tokens or ASSUMED_POOL_TOKENS,
        lambda: time.monotonic() - start,
        page_tokens=page_tokens,
        followed={n for n, worker in enumerate(workers) if worker.kv_events is not None},
    )
    router.prepare(Setup(weights=config.weights, pool_tokens=tokens or 0, fleet=dispatcher))
    return dispatcher


class _Sizes(NamedTuple):
    """The smallest pool, None if no worker says, and the largest page (SGLang's page_size)."""

    pool_tokens: int | None
    page_tokens: int


async def _sizes(session: ClientSession, urls: Iterable[str]) -> _Sizes:
    """What the workers say of their KV pools, together."""
    told = await asyncio.gather(*(_ask(session, url) for url in urls))
    return _Sizes(
        min((size for info in told if (size := _size(info, "max_total_num_tokens"))), default=None),
        max((size for info in told if (size := _size(info, "page_size"))), default=1),
    )


def _size(info: dict[str, Any], key: str) -> int | None:
    size = info.get(key)
    return size if isinstance(size, int) and size > 0 else None


async def _ask(session: ClientSession, url: str) -> dict[str, Any]:
    """What a worker says of itself, {} if it says nothing of the kind."""
    try:
        async with session.get(f"{url}/server_info", timeout=ASK_TIMEOUT) as answer:
            info: Any = await answer.json(content_type=None)
    except (ClientError, OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


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
        )
        for number, worker in enumerate(config.workers)
        if worker.kv_events is not None
    }


def _returned(subscribers: Mapping[int, Subscriber], worker: int) -> None:
    if worker in subscribers:
        subscribers[worker].restart()


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
