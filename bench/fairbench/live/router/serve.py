"""Runs the router until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

from aiohttp import web

from fairbench.errors import UsageError
from fairbench.live.connections import allow_many_connections
from fairbench.live.router.app import PROXY, build_app
from fairbench.live.router.config import RouterConfig
from fairbench.live.router.proxy import Proxy

POLL_S = 0.05
SHUTDOWN_S = 0.5  # for what is left after the grace period


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
    allow_many_connections()
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    app = build_app(config)
    runner = web.AppRunner(
        app, handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_S
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=1024)
        await _listen(site, host, port)
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, stop.set)
        on_ready(f"http://{host}:{runner.addresses[0][1]}")
        await stop.wait()
        stop.clear()
        await site.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await _drained(app[PROXY], stop)
    finally:
        await runner.cleanup()


async def _listen(site: web.TCPSite, host: str, port: int) -> None:
    try:
        await site.start()
    except OSError as error:
        raise UsageError(f"--host {host} --port {port}: {error.strerror}") from None


async def _drained(proxy: Proxy, hurry: asyncio.Event) -> None:
    while proxy.under_way and not hurry.is_set():
        await asyncio.sleep(POLL_S)
