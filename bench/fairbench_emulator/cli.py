"""The command ``fairbench emulate``, which runs one emulated worker with SGLang's HTTP API."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from fairbench.cli.options import Weights, option_of
from fairbench.config.flags import HOST, PORT, RUN, SETTINGS
from fairbench.config.parse_flags import parse_assignments, parse_weights
from fairbench.errors import UsageError
from fairbench.hardware.catalogue import resolve_profile
from fairbench.schedulers.base import checked_weights
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_load.processes.environment import require_live_extra

if TYPE_CHECKING:
    from fairbench_emulator.worker import EmulatedWorker


def emulate(
    port: Annotated[
        int, option_of(PORT, "Port to listen on for HTTP; 0 chooses a free port.")
    ] = 30_000,
    host: Annotated[str, option_of(HOST, default="")] = HOST.default,
    gpu: Annotated[str, option_of(RUN["gpu"], default="")] = RUN["gpu"].default,
    model: Annotated[str, option_of(RUN["model"], default="")] = RUN["model"].default,
    local: Annotated[
        str, option_of(RUN["local"], "Local scheduler, see `list schedulers`.")
    ] = "fcfs",
    settings: Annotated[
        list[str] | None,
        option_of(SETTINGS, "Parameter of the local scheduler or the engine; may be repeated."),
    ] = None,
    weights: Weights = None,
    time_scale: Annotated[
        float,
        option_of(
            RUN["time_scale"],
            "Speed of the emulator: emulated seconds per real second.",
            default="",
        ),
    ] = 1.0,
    slowdown: Annotated[
        float,
        Option(help="Factor by which every iteration takes longer, to emulate a slow worker."),
    ] = 1.0,
    stream_interval: Annotated[
        int, Option(min=1, help="Number of decode steps between two chunks of a streamed answer.")
    ] = 16,
    kv_events_port: Annotated[
        int | None,
        option_of(PORT, "Port on which KV events are published (ZMQ); 0 chooses a free port."),
    ] = None,
    kv_replay_port: Annotated[
        int | None,
        option_of(
            PORT, "Port on which subscribers ask for missed KV events.", default="any free port"
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        option_of(
            RUN["tokenizer"],
            "File tokenizer.json that tokenizes text prompts.",
            default="the number of tokens is estimated",
        ),
    ] = None,
    number: Annotated[
        int | None,
        Option(
            min=0,
            help="Number of this worker in the cluster; every answer then contains this number.",
        ),
    ] = None,
) -> None:
    """Serve SGLang's HTTP API with the simulated engine. The emulator needs no GPU.

    The command prints the worker's address in the form that `serve --worker-url` takes. Answers are
    emulated: their times come from the timing profile, and their texts are random.
    """
    require_live_extra()
    from fairbench_emulator.app import serve_emulator
    from fairbench_emulator.worker import EmulatorConfig

    if kv_replay_port is not None and kv_events_port is None:
        raise UsageError("--kv-replay-port needs --kv-events-port")
    config = EmulatorConfig(
        gpu=resolve_profile(gpu, model).profile_id,
        model=model,
        local=local,
        settings=parse_assignments(settings),
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
