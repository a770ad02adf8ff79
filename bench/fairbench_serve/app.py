"""The router's HTTP application."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from socket import gethostname
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.typedefs import Handler

from fairbench.live import headers
from fairbench.live.http_server import metrics_page
from fairbench.live.json_errors import Problem, errors_as_json, problems_as_answers
from fairbench.schedulers.gateway.admission.reroute import rerouting
from fairbench.schedulers.gateway.registry import admission_params
from fairbench.schedulers.registry import build_router
from fairbench_serve.calls import APIS, Api
from fairbench_serve.config import RouterConfig
from fairbench_serve.identity import ANY_HOST, LOOPBACK_HOSTS, check_host, check_single
from fairbench_serve.metrics import RouterMetrics
from fairbench_serve.peers import PATH as PEERS_PATH
from fairbench_serve.prompts import load_text_tokens
from fairbench_serve.service import Service, running
from fairbench_serve.traces import NO_TRACES, Traces

if TYPE_CHECKING:
    from aiohttp.typedefs import Middleware

SERVICE = web.AppKey("service", Service)

log = logging.getLogger(__name__)


def router_app(config: RouterConfig, traces: Traces = NO_TRACES) -> web.Application:
    """Return the application. Run it with ``handler_cancellation``: a disconnect aborts a request.

    Raises UsageError for a wrong router, setting or tokenizer.
    """
    router = build_router(config.router, config.settings, len(config.workers))
    admission = admission_params(config.settings)
    if admission.is_on and admission.reroute:
        router = rerouting(router)
    text = load_text_tokens(config.tokenizer)
    metrics = RouterMetrics()
    metrics.describe(config.router, text.method)
    log.info("prompts in text: tokens %s", text.method)
    app = web.Application(
        client_max_size=config.max_body_bytes,
        middlewares=[errors_as_json, problems_as_answers, _only_hosts(config)],
    )

    async def run(app: web.Application) -> AsyncIterator[None]:
        async with running(config, router, text, metrics, traces) as service:
            app[SERVICE] = service
            yield

    async def health(request: web.Request) -> web.Response:
        status = 200 if request.app[SERVICE].dispatcher.up else 503
        return web.Response(status=status, headers={headers.ROUTERS: config.router_id})

    async def scrape(_: web.Request) -> web.Response:
        return metrics_page(metrics.registry)

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
    return await peering.hear(request)


def _generate(api: Api, metrics: RouterMetrics) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await request.app[SERVICE].proxy.serve(request, api)
        except Problem as problem:
            metrics.refused(problem.status)
            raise

    return handle


async def _models(request: web.Request) -> web.StreamResponse:
    return await request.app[SERVICE].proxy.models(request)


async def _version(request: web.Request) -> web.StreamResponse:
    return await request.app[SERVICE].proxy.version(request)


def _only_hosts(config: RouterConfig) -> Middleware:
    """Return a middleware that refuses ambiguous requests, and those of other sites' pages."""
    allowed = {*LOOPBACK_HOSTS, gethostname().lower(), *(name.lower() for name in config.hosts)}
    is_open = ANY_HOST in allowed or config.keys is not None

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        check_single(request)
        if not (is_open or request.path == PEERS_PATH):
            check_host(request, allowed, addresses=True)
        return await handler(request)

    return checked
