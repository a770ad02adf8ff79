"""The router process: its components, HTTP application and server loop."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from socket import gethostname
from ssl import SSLContext
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web
from aiohttp.typedefs import Handler

from fairbench.errors import FairbenchError
from fairbench.schedulers.base import Router, Setup
from fairbench.schedulers.gateway.registry import admission_params
from fairbench.schedulers.gateway.rerouting import is_overruled, rerouting
from fairbench.schedulers.registry import build_router
from fairbench_load import headers, http_server
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve import worker_info
from fairbench_serve.admin import PATH, Membership, admin_app
from fairbench_serve.background import (
    WorkerTasks,
    background,
    give_back_freed_memory,
    keep_large_buffers_apart,
)
from fairbench_serve.breaker import Breakers, Refusals
from fairbench_serve.calls import APIS, Api
from fairbench_serve.config import RouterConfig
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.gateway import hold_requests
from fairbench_serve.health import Health, WorkerWatch
from fairbench_serve.identity import ANY_HOST, LOOPBACK_HOSTS, check_host, check_single
from fairbench_serve.keys_file import Access
from fairbench_serve.kv_events import BlockIndex, Subscriber
from fairbench_serve.metrics import RouterMetrics
from fairbench_serve.peers import PATH as PEERS_PATH
from fairbench_serve.peers import Peering, peering_of, telling
from fairbench_serve.prompts import TextTokens, load_text_tokens
from fairbench_serve.proxy import Proxy
from fairbench_serve.retries import Attempts, Sessions
from fairbench_serve.spans import NO_TRACES, Traces

if TYPE_CHECKING:
    from aiohttp.typedefs import Middleware


# The router closes an idle connection to a worker after this many seconds. Uvicorn, the HTTP server
# of SGLang and vLLM, closes an idle connection after 5 s, and a busy router may notice the end of
# the connection too late.
KEEP_ALIVE_S = 4.0
CONNECT_TIMEOUT_S = 10.0  # longest time in seconds for opening a connection to a worker
FIRST_CHECK_S = 2.0  # longest time in seconds for the first health check, before the router starts


class RouterService(NamedTuple):
    """The components of a running router that its HTTP endpoints use."""

    proxy: Proxy
    dispatcher: Dispatcher
    membership: Membership
    peering: Peering | None


@asynccontextmanager
async def running(
    config: RouterConfig, router: Router, text: TextTokens, metrics: RouterMetrics, traces: Traces
) -> AsyncIterator[RouterService]:
    """Run the router's service, including health checks and readers of KV events."""
    keep_large_buffers_apart()
    workers = list(config.workers)
    async with (
        _new_session(TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)) as session,
        _new_session(TCPConnector(limit=0, force_close=True)) as fresh,
        aclosing(WorkerTasks()) as tasks,
    ):
        info = await worker_info.ask_workers(session, workers)
        access = Access(config.keys, config.keys_file, config.weights, time.monotonic)
        dispatcher = _new_dispatcher(config, router, info, access.weights)
        worker_info.warn_of_others(config.local, dict(enumerate(info.locals)))
        facts = worker_info.WorkerFacts(session, workers, info, config)
        breakers, refusals = Breakers(len(workers), time.monotonic), Refusals(time.monotonic)
        poll = await hold_requests(config, session, dispatcher, info, access.weights)
        access.on_weights = dispatcher.router.on_weights
        peering = peering_of(config, dispatcher)
        subscribers: dict[int, Subscriber] = {}
        metrics.watch_router(dispatcher, subscribers, access.weights)

        def subscribe(worker: int) -> None:
            subscriber = _subscriber(worker, workers[worker], dispatcher)
            if subscriber is not None:
                subscribers[worker] = subscriber
                tasks.start_task(worker, subscriber.run())

        def follow_load(worker: int) -> None:
            if poll is not None:
                tasks.start_task(worker, poll(worker, workers[worker]))

        def follow(worker: int) -> None:
            subscribe(worker)
            follow_load(worker)

        def unfollow(worker: int) -> None:
            tasks.stop_tasks(worker)
            subscribers.pop(worker, None)

        async def returned(worker: int) -> None:
            refusals.forget_worker(worker)
            await facts.learn(worker)
            if worker in subscribers:
                subscribers[worker].restart()

        health = Health(
            *(workers, dispatcher, config.health_timeout_s, breakers, returned), config.router_id
        )
        sessions = Sessions(session, fresh)
        progress = WorkerWatch(workers, dispatcher, session, config.stall_s, health.stalled)
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
                access.watch_file(),
                give_back_freed_memory(),
                *telling(config, peering, session),
            ]
            async with background(beside):
                proxy = Proxy(
                    *(config, workers, session, dispatcher, health, attempts, facts, text, access),
                    traces,
                )
                yield RouterService(proxy, dispatcher, membership, peering)


def _new_session(connector: TCPConnector) -> ClientSession:
    return ClientSession(
        connector=connector,
        # The total time of a request is unlimited, because requests may be queued for long. Instead
        # of a time limit, health checks detect workers that hang.
        timeout=ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        auto_decompress=False,
        # Workers must not compress answers, because the router cannot decompress them.
        headers={"Accept-Encoding": "identity"},
    )


def _new_dispatcher(
    config: RouterConfig, router: Router, info: worker_info.WorkerInfo, weights: Mapping[str, float]
) -> Dispatcher:
    workers, start_s = config.workers, time.monotonic()
    dispatcher = Dispatcher(
        router,
        len(workers),
        info.pool_tokens or worker_info.ASSUMED_POOL_TOKENS,
        lambda: time.monotonic() - start_s,
        page_tokens=info.page_tokens,
        followed={n for n, worker in enumerate(workers) if worker.kv_events is not None},
    )
    router.prepare(Setup(weights=weights, pool_tokens=info.pool_tokens or 0, fleet=dispatcher))
    return dispatcher


def _subscriber(worker: int, address: WorkerAddress, dispatcher: Dispatcher) -> Subscriber | None:
    if address.kv_events is None or not dispatcher.router.wants_evictions:
        return None
    lost, cleared = dispatcher.lost, dispatcher.forget_cache
    return Subscriber(
        address,
        BlockIndex(partial(lost, worker), partial(cleared, worker)),
        on_follow=partial(dispatcher.follow, worker),
    )


SERVICE = web.AppKey("service", RouterService)

log = logging.getLogger(__name__)


def router_app(config: RouterConfig, traces: Traces = NO_TRACES) -> web.Application:
    """Return the aiohttp application of the router.

    The HTTP server must set aiohttp's ``handler_cancellation``, so that a request is aborted when
    its client disconnects. Raises UsageError for an invalid routing policy, setting or tokenizer.
    """
    router = build_router(config.router, config.settings, len(config.workers))
    if is_overruled(config.gateway, admission_params(config.settings)):
        router = rerouting(router)
    text = load_text_tokens(config.tokenizer)
    metrics = RouterMetrics()
    metrics.describe(config.router, text.method)
    log.info("tokens of text prompts: %s", text.method)
    app = web.Application(
        client_max_size=config.max_body_bytes,
        middlewares=[
            http_server.errors_as_json,
            http_server.problems_as_answers,
            _only_hosts(config),
        ],
    )

    async def run(app: web.Application) -> AsyncIterator[None]:
        async with running(config, router, text, metrics, traces) as service:
            app[SERVICE] = service
            yield

    async def health(request: web.Request) -> web.Response:
        status = 200 if request.app[SERVICE].dispatcher.up else 503
        return web.Response(status=status, headers={headers.ROUTERS: config.router_id})

    async def scrape(_: web.Request) -> web.Response:
        return http_server.metrics_page(metrics.registry)

    app.cleanup_ctx.append(run)
    app.add_routes([web.post(api.path, _generate(api, metrics)) for api in APIS])
    app.add_routes(
        [
            web.get("/v1/models", _models),
            web.get("/v1/models/{model:.+}", _models),
            web.get("/version", _version),
            web.get("/health", health),
            web.get("/metrics", scrape),
        ]
    )
    if config.peers:
        app.add_routes([web.post(PEERS_PATH, _peer)])
    return app


async def _peer(request: web.Request) -> web.StreamResponse:
    peering = request.app[SERVICE].peering
    assert peering is not None, "there are peers"
    return await peering.answer_peer(request)


def _generate(api: Api, metrics: RouterMetrics) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await request.app[SERVICE].proxy.answer_request(request, api)
        except http_server.Problem as problem:
            metrics.count_refusal(problem.status)
            raise

    return handle


async def _models(request: web.Request) -> web.StreamResponse:
    return await request.app[SERVICE].proxy.models(request)


async def _version(request: web.Request) -> web.StreamResponse:
    return await request.app[SERVICE].proxy.version(request)


def _only_hosts(config: RouterConfig) -> Middleware:
    """Return a middleware that refuses ambiguous requests and requests of other web sites."""
    allowed = {*LOOPBACK_HOSTS, gethostname().lower(), *(name.lower() for name in config.hosts)}
    is_open = ANY_HOST in allowed or config.keys is not None

    @web.middleware
    async def check_request(request: web.Request, handler: Handler) -> web.StreamResponse:
        check_single(request)
        if not (is_open or request.path == PEERS_PATH):
            check_host(request, allowed, addresses=True)
        return await handler(request)

    return check_request


ADMIN_FLAG = "--admin-port"
POLL_S = 0.05  # seconds between two checks for unfinished requests while the router shuts down


async def serve_router(
    config: RouterConfig,
    host: str,
    port: int,
    *,
    grace_s: float,
    on_ready: Callable[[str], None],
    tls: SSLContext | None = None,
    read_tls: Callable[[], SSLContext | None] = lambda: None,
    traces: Traces = NO_TRACES,
) -> None:
    """Serve requests until SIGINT, SIGTERM or SIGHUP.

    After the first signal, streams may continue for ``grace_s`` seconds; a second signal ends all
    streams at once. With ``tls``, SIGHUP does not end the server, but loads new certificates with
    ``read_tls``. ``on_ready`` is called with the URL of the server. Raises UsageError for an
    invalid setting or an unavailable address.
    """
    app = router_app(config, traces)
    async with (
        http_server.listening(app, host, port, tls, decompress=False) as server,
        _administered(app, config),
    ):
        if tls is not None:
            renew = partial(_renew_tls, server.site, read_tls)
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, renew)
        on_ready(server.url)
        await server.stop.wait()
        server.stop.clear()
        await server.site.stop_accepting()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while app[SERVICE].dispatcher.under_way and not server.stop.is_set():
                    await asyncio.sleep(POLL_S)


def _renew_tls(site: http_server.Connections, read_tls: Callable[[], SSLContext | None]) -> None:
    """Use the new certificate files for new connections, or log an error if they are invalid."""
    try:
        site.tls = read_tls()
    except FairbenchError as error:
        log.warning("%s: the previous certificate stays in force", error)
        return
    log.info("the TLS certificate and its key were read again")


@asynccontextmanager
async def _administered(app: web.Application, config: RouterConfig) -> AsyncIterator[None]:
    if config.admin_port is None:
        yield
        return
    admin = admin_app(app[SERVICE].membership, config.worker_keys, config.admin_key)
    async with http_server.listening_beside(admin, config.admin_port, ADMIN_FLAG) as url:
        log.info("admin endpoint: %s%s", url, PATH)
        yield
