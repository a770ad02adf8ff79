"""``fairbench emulate``: one emulated worker that speaks SGLang's HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from fairbench.config.flags.texts import assigned, parse_weights
from fairbench.errors import UsageError
from fairbench.hardware.catalogue import resolve_profile
from fairbench.live.processes.addresses import WorkerAddress
from fairbench.live.requirements import require_live_extra
from fairbench.schedulers.setup import checked_weights

if TYPE_CHECKING:
    from fairbench.live.emulator.worker import EmulatedWorker

MAX_PORT = 65_535


def emulate(
    port: Annotated[
        int, Option(min=0, max=MAX_PORT, help="HTTP port; 0 is any free port.")
    ] = 30_000,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    gpu: Annotated[
        str, Option(help="Timing profile id or a unique prefix, see `list profiles`.")
    ] = "a100",
    model: Annotated[str, Option(help="Model served.")] = "llama-3.1-8b",
    local: Annotated[str, Option(help="Local scheduler, see `list schedulers`.")] = "fcfs",
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME.PARAM=VALUE",
            help="Any parameter of the local scheduler or the engine; may be repeated.",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        Option(
            metavar="NAME=WEIGHT,...",
            help="Weights: entitlements relative to clients that are not named, which have 1.",
        ),
    ] = None,
    time_scale: Annotated[float, Option(help="Emulated seconds that pass in a real one.")] = 1.0,
    slowdown: Annotated[
        float, Option(help="Factor on the time of every iteration: a slow worker.")
    ] = 1.0,
    stream_interval: Annotated[
        int, Option(min=1, help="Decode steps between two chunks of a stream.")
    ] = 16,
    kv_events_port: Annotated[
        int | None,
        Option(min=0, max=MAX_PORT, help="Publish KV events there (ZMQ); 0 is any free port."),
    ] = None,
    kv_replay_port: Annotated[
        int | None,
        Option(min=0, max=MAX_PORT, help="Replay missed KV events there. [default: any free port]"),
    ] = None,
    tokenizer: Annotated[
        str | None,
        Option(help="tokenizer.json for prompts in text. [default: tokens are approximated]"),
    ] = None,
    number: Annotated[
        int | None, Option(min=0, help="Its number among workers, which its answers then say.")
    ] = None,
) -> None:
    """Serve SGLang's HTTP with the simulated engine, in real time. No GPU is needed.

    Prints its address as `serve --worker-url` takes it. All its answers are emulated: times are
    those of the profile, texts are made up.
    """
    require_live_extra()
    from fairbench.live.emulator.app import serve_emulator
    from fairbench.live.emulator.config import EmulatorConfig

    if kv_replay_port is not None and kv_events_port is None:
        raise UsageError("--kv-replay-port: only with --kv-events-port")
    config = EmulatorConfig(
        gpu=resolve_profile(gpu, model).profile_id,
        model=model,
        local=local,
        settings=assigned(settings),
        weights=checked_weights(parse_weights(weights) or {}),
        host=host,
        port=port,
        kv_events_port=kv_events_port,
        kv_replay_port=kv_replay_port or 0,
        time_scale=time_scale,
        slowdown=slowdown,
        stream_interval=stream_interval,
        tokenizer=tokenizer,
        number=number,
    )
    asyncio.run(serve_emulator(config, _announce))


def _announce(url: str, emulator: EmulatedWorker) -> None:
    publisher = emulator.publisher
    address = (
        WorkerAddress(url)
        if publisher is None
        else WorkerAddress(url, publisher.endpoint, publisher.replay_endpoint)
    )
    typer.echo(address.as_option())
