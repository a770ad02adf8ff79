"""Runs an emulator until it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fairbench.errors import RunFailed
from fairbench.live.emulator.app import build_app
from fairbench.live.emulator.build import Emulator, build
from fairbench.live.emulator.config import EmulatorConfig
from fairbench.live.http_server import listening


async def serve(config: EmulatorConfig, on_ready: Callable[[str, Emulator], None]) -> None:
    """Serve until SIGINT or SIGTERM. ``on_ready`` is told the URL.

    Raises UsageError if a setting or a port cannot be used, RunFailed if the scheduler fails, which
    ends a SGLang server too.
    """
    emulator = build(config, asyncio.get_running_loop())
    try:
        async with listening(build_app(emulator), config.host, config.port) as server:
            emulator.engine.on_failure = server.stop.set
            on_ready(server.url, emulator)
            await server.stop.wait()
    finally:
        if emulator.publisher is not None:
            await emulator.publisher.close()
    if (failure := emulator.engine.failure) is not None:
        raise RunFailed(f"{config.local} failed: {failure!r}") from failure
