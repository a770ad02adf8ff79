"""Serving until the shutdown, which drains the router: streams get a time to end."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from ssl import SSLContext

from aiohttp import web

from fairbench.errors import FairbenchError
from fairbench.live.connections import Connections
from fairbench.live.http_server import listening, listening_beside
from fairbench_serve.admin import PATH, admin_app
from fairbench_serve.app import SERVICE, router_app
from fairbench_serve.config import RouterConfig
from fairbench_serve.traces import NO_TRACES, Traces

ADMIN_FLAG = "--admin-port"
POLL_S = 0.05
log = logging.getLogger(__name__)


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
    """Serve until SIGINT, SIGTERM or SIGHUP, then give streams ``grace_s`` to end.

    A second signal ends the streams. ``on_ready`` receives the URL. With ``tls``, SIGHUP calls
    ``read_tls`` for new connections instead. Raises UsageError if a setting or the address cannot
    be used.
    """
    app = router_app(config, traces)
    async with (
        listening(app, host, port, tls, decompress=False) as server,
        _administered(app, config),
    ):
        if tls is not None:
            renew = partial(_renew_tls, server.site, read_tls)
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, renew)
        on_ready(server.url)
        await server.stop.wait()
        server.stop.clear()
        await server.site.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while app[SERVICE].dispatcher.under_way and not server.stop.is_set():
                    await asyncio.sleep(POLL_S)


def _renew_tls(site: Connections, read_tls: Callable[[], SSLContext | None]) -> None:
    """Use the renewed files for new connections; unusable files are reported and change nothing."""
    try:
        site.tls = read_tls()
    except FairbenchError as error:
        log.warning("%s: the previous certificate stays in force", error)
        return
    log.info("the TLS certificate and its key were read again")


@asynccontextmanager
async def _administered(app: web.Application, config: RouterConfig) -> AsyncIterator[None]:
    """Run the admin endpoint, if requested, until the block ends."""
    if config.admin_port is None:
        yield
        return
    admin = admin_app(app[SERVICE].membership, config.worker_keys, config.admin_key)
    async with listening_beside(admin, config.admin_port, ADMIN_FLAG) as url:
        log.info("admin endpoint: %s%s", url, PATH)
        yield
