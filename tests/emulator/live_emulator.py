"""An emulator in this process, behind a real socket."""

import json
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
from aiohttp import web

from fairbench.hardware.catalogue import resolve_profile
from fairbench_emulator.app import emulator_app
from fairbench_emulator.worker import EmulatorConfig, build

FAST = 200.0  # emulated seconds per real second; a decode step takes less than 0.1 ms
CONFIG = EmulatorConfig(
    resolve_profile("a100", "llama-3.1-8b").profile_id, "llama-3.1-8b", "fcfs", time_scale=FAST
)


@asynccontextmanager
async def running(loop, **changes):
    """Yield ``(emulator, session)``. The session's requests go to the emulator."""
    emulator = build(replace(CONFIG, **changes), loop)
    runner = web.AppRunner(emulator_app(emulator), handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        async with aiohttp.ClientSession(f"http://{host}:{port}") as session:
            yield emulator, session
    finally:
        await runner.cleanup()
        if emulator.publisher is not None:
            await emulator.publisher.close()


async def generate(session, ids, new=4, **more):
    """Return the JSON answer of /generate."""
    body = {"input_ids": list(ids), "sampling_params": {"max_new_tokens": new}, **more}
    async with session.post("/generate", json=body) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def events(answer):
    """Return the JSON of every server-sent event. The last event must be the end mark."""
    lines = [line async for line in answer.content]
    payloads = [line.removeprefix(b"data: ").strip() for line in lines if line.strip()]
    assert payloads.pop() == b"[DONE]"
    return [json.loads(payload) for payload in payloads]
