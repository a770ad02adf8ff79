"""Runs an emulator until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from aiohttp import web

from fairbench.errors import UsageError
from fairbench.live.connections import allow_many_connections
from fairbench.live.emulator.app import build_app
from fairbench.live.emulator.build import Emulator, build
from fairbench.live.emulator.config import EmulatorConfig

SHUTDOWN_S = 0.5  # for requests under way: a worker that was told to stop has no time to lose


async def serve(config: EmulatorConfig, on_ready: Callable[[str, Emulator], None]) -> None:
    """Serve until SIGINT or SIGTERM. ``on_ready`` is told the URL.

    Raises UsageError if a setting or a port cannot be used.
    """
    allow_many_connections()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    emulator = build(config, loop)
    runner = web.AppRunner(
        build_app(emulator),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=SHUTDOWN_S,
    )
    await runner.setup()
    try:
        port = await _listen(runner, config)
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, stop.set)
        on_ready(f"http://{config.host}:{port}", emulator)
        await stop.wait()
    finally:
        await runner.cleanup()
        if emulator.publisher is not None:
            await emulator.publisher.close()


async def _listen(runner: web.AppRunner, config: EmulatorConfig) -> int:
    """Bind; returns the port."""
    site = web.TCPSite(runner, config.host, config.port, backlog=1024)
    try:
        await site.start()
    except OSError as error:
        reason = str(error.strerror).rpartition("): ")[2]  # asyncio puts the address in front
        raise UsageError(f"--port {config.port}: {reason}") from None
    port: int = runner.addresses[0][1]
    return port
