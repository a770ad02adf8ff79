"""Runs the router until it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from fairbench.live.http_server import listening
from fairbench.live.router.app import PROXY, build_app
from fairbench.live.router.config import RouterConfig
from fairbench.live.router.proxy import Proxy

POLL_S = 0.05


async def serve(
    config: RouterConfig,
    host: str,
    port: int,
    *,
    grace_s: float,
    on_ready: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM, then give streams ``grace_s`` to end; a second one ends them.

    ``on_ready`` is told the URL. Raises UsageError if a setting or the address cannot be used.
    """
    app = build_app(config)
    async with listening(app, host, port) as server:
        on_ready(server.url)
        await server.stop.wait()
        server.stop.clear()
        await server.site.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await _drained(app[PROXY], server.stop)


async def _drained(proxy: Proxy, hurry: asyncio.Event) -> None:
    while proxy.under_way and not hurry.is_set():
        await asyncio.sleep(POLL_S)
