"""``fairbench serve``: the router in front of workers, for anyone's traffic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from fairbench.cli.flags import AllowUntested, Gateway, assigned, given, goodput_flag, split_args
from fairbench.cli.serve_flags import (
    AdminKeyFile,
    AdminPort,
    AllowHost,
    AllowRegex,
    ClientFrom,
    ClientLimit,
    Keys,
    MaxBodyMemory,
    MaxInflight,
    MaxQueuePerClient,
    Otel,
    PeerKeyFile,
    Peers,
    Promised,
    Saturation,
    StallTimeout,
    TlsCert,
    TlsKey,
    Tokenizer,
    VocabSize,
    WorkerKey,
    WorkerKeyFile,
)
from fairbench.config.backend_names import STARTED
from fairbench.errors import UsageError, unknown_name
from fairbench.live.plugins.releases import allow_untested
from fairbench.live.requirements import require_live_extra
from fairbench.schedulers.setup import checked_weights
from fairbench.tenants import with_tenants

DEFAULT_LOG_DIR = Path("results/serve")
# Options for workers that this command starts.
ONLY_WITH_DP = (
    *("local", "backend", "model", "gpu", "tp", "load_format", "server_arg", "time_scale"),
    *("server_python", "allow_untested_release", "ready_check_timeout_sec", "log_dir"),
)
ONLY_WITH_URLS = ("worker_key", "worker_key_file", "peer", "peer_key_file")


def serve(
    context: typer.Context,
    worker_url: Annotated[
        list[str] | None,
        Option(
            metavar="URL[,kv=tcp://HOST:PORT[,replay=tcp://HOST:PORT]]",
            help="A worker that runs already, with its KV events if it publishes any; repeat it.",
        ),
    ] = None,
    worker_key: WorkerKey = None,
    worker_key_file: WorkerKeyFile = None,
    gateway: Gateway = None,
    saturation: Saturation = None,
    max_inflight_per_worker: MaxInflight = None,
    client_limit: ClientLimit = True,
    dp: Annotated[
        int | None, Option(min=1, help="Start so many workers instead, and end them with this.")
    ] = None,
    scheduler: Annotated[
        str, Option(help="Pair of router and local scheduler, see `list schedulers`.")
    ] = "d2lpm",
    router: Annotated[str | None, Option(help="Another router than the pair's.")] = None,
    local: Annotated[
        str | None, Option(help="Another local scheduler than the pair's; with --dp.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME.PARAM=VALUE",
            help="Any parameter of the router and, with --dp, of the workers; may be repeated.",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        Option(
            metavar="NAME=WEIGHT,...",
            help="Weights: entitlements relative to clients that are not named, which have 1.",
        ),
    ] = None,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, Option(min=0, max=65_535, help="Port to listen on; 0 is any free port.")
    ] = 8000,
    allow_host: AllowHost = None,
    goodput: Promised = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    admin_port: AdminPort = None,
    admin_key_file: AdminKeyFile = None,
    peer: Peers = None,
    peer_key_file: PeerKeyFile = None,
    otel: Otel = False,
    keys: Keys = None,
    client_from: ClientFrom = None,
    tokenizer: Tokenizer = None,
    max_queue: Annotated[
        int,
        Option(
            min=1,
            help="Most requests under way. When they are, the client with the most waiting ones "
            "makes room for others; more are answered with 429.",
        ),
    ] = 10_000,
    max_queue_per_client: MaxQueuePerClient = None,
    max_body_memory: MaxBodyMemory = None,
    vocab_size: VocabSize = None,
    allow_regex: AllowRegex = False,
    stall_timeout: StallTimeout = 120.0,
    grace: Annotated[
        float, Option(min=0, help="Seconds that streams get to end after SIGINT or SIGTERM.")
    ] = 30.0,
    backend: Annotated[
        str, Option(metavar="|".join(STARTED), help="Engine to start with --dp.")
    ] = "sglang",
    model: Annotated[str | None, Option(help="Model that --dp serves.")] = None,
    gpu: Annotated[
        str | None, Option(help="Timing profile of emulators started with --dp. [default: a100]")
    ] = None,
    tp: Annotated[int | None, Option(help="GPUs of each SGLang server started with --dp.")] = None,
    load_format: Annotated[
        str | None, Option(help="Load format of servers started with --dp, as in SGLang.")
    ] = None,
    server_arg: Annotated[
        list[str] | None,
        Option(
            metavar="'--FLAG VALUE'",
            help="Another flag of each server started with --dp; may be repeated.",
        ),
    ] = None,
    time_scale: Annotated[
        float | None, Option(help="Seconds of an emulator's time in a second, with --dp.")
    ] = None,
    server_python: Annotated[
        str | None,
        Option(
            help="Python with SGLang for --dp. [default: $FAIRBENCH_SGLANG_PYTHON, or this one]"
        ),
    ] = None,
    allow_untested_release: AllowUntested = False,
    ready_check_timeout_sec: Annotated[
        float, Option(min=1, help="Seconds within which workers of --dp must be ready.")
    ] = 600.0,
    log_dir: Annotated[
        Path, Option(help="Directory for the logs of workers started with --dp.")
    ] = DEFAULT_LOG_DIR,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Say what would be done, as TOML, and start nothing.")
    ] = False,
) -> None:
    """Route anyone's requests to workers: the APIs of OpenAI, and SGLang's /generate.

    Prints its URL when it serves. Who sends a request is said by the header x-fairbench-client, by
    `user` in its body (see --client-from), or by its API key.
    """
    from fairbench.cli.serve_peers import peers_by
    from fairbench.cli.serve_plan import client_fields, held_by, plan_text
    from fairbench.execute.routed_workers import (
        Routed,
        named_workers,
        planned_workers,
        started_workers,
    )
    from fairbench.live.backends.base import LiveOptions
    from fairbench.schedulers.registry import split_pair

    require_live_extra()
    from fairbench.live.http_server import check_address
    from fairbench.live.processes.addresses import LOOPBACK
    from fairbench.live.router.app import serve_router
    from fairbench.live.router.config import RouterConfig
    from fairbench.live.router.keys_file import admin_key_of, read_keys
    from fairbench.live.router.otel import otel_traces
    from fairbench.live.router.promises import promises
    from fairbench.live.router.traces import Traces
    from fairbench.live.router.worker_keys import worker_keys
    from fairbench.live.tls import server_tls

    if bool(worker_url) == bool(dp):
        raise UsageError("name workers by --worker-url, or start some by --dp: one of the two")
    if worker_url and (misplaced := _given(context, ONLY_WITH_DP)):
        raise UsageError(f"--{misplaced[0].replace('_', '-')}: only with --dp")
    if dp and (misplaced := _given(context, ONLY_WITH_URLS)):
        raise UsageError(f"--{misplaced[0].replace('_', '-')}: only with --worker-url")
    logging.basicConfig(level=logging.INFO, format="fairbench: %(message)s")
    known = read_keys(keys) if keys else None
    clients = known.keys if known else None
    said_by = client_fields(client_from, keys=clients is not None)
    flagged = _weights(weights, clients)
    entitled = {**known.weights, **flagged} if known else flagged
    of_workers = worker_keys(worker_key, worker_key_file)
    promised = promises(goodput_flag(goodput))
    traces = otel_traces() if otel else Traces()
    tls = server_tls(tls_cert, tls_key)
    check_address(host, port)
    admin_key = admin_key_of(admin_port, admin_key_file, known, of_workers)
    if admin_port is not None:
        check_address(LOOPBACK, admin_port, f"--admin-port {admin_port}")
    asked = not (router or gateway) or bool(_given(context, ("scheduler",)))
    held = held_by(gateway, saturation, max_inflight_per_worker, assigned(settings))
    assignments = held.settings
    peers = peers_by(peer, peer_key_file, router or split_pair(scheduler)[0], held, admin_port)
    server = {
        "tp": tp,
        "load_format": load_format,
        "time_scale": time_scale,
        "server_args": split_args(server_arg),
    }
    started = {"router": router, "local": local, "dp": dp, "model": model, "gpu": gpu}
    flags = {
        "scheduler": scheduler,
        **given(started),
        "backend": {"kind": backend, **given(server)},
    }

    if allow_untested_release:
        allow_untested()

    def config_of(routed: Routed) -> RouterConfig:
        return RouterConfig(
            router=routed.router,
            workers=routed.workers,
            settings=routed.settings,
            weights=_own(routed.weights, flagged, known.weights) if known else routed.weights,
            keys=clients,
            keys_file=keys,
            client_from=said_by,
            tokenizer=tokenizer,
            max_queue=max_queue,
            max_queue_per_client=max_queue_per_client,
            max_bodies_bytes=max_body_memory and max_body_memory << 20,
            vocab_size=vocab_size,
            patterns=allow_regex,
            stall_s=stall_timeout,
            local=routed.local,
            gateway=held.policy,
            saturation=held.saturation,
            limits_clients=client_limit,
            worker_keys=of_workers,
            hosts=(host, *(allow_host or ())),
            admin_port=admin_port,
            admin_key=admin_key,
            promises=promised,
            peers=peers.urls,
            peer_key=peers.key,
        )

    named = (
        named_workers(
            *(worker_url, scheduler, router, assignments, entitled),
            parts=(*held.parts, *peers.parts),
            local=split_pair(scheduler)[1] if asked else None,
            keys=of_workers,
            all_named=admin_port is None,
        )
        if worker_url
        else None
    )
    if dry_run:
        planned = named or planned_workers(flags, assignments, entitled, parts=held.parts)
        typer.echo(plan_text(config_of(planned), planned.spec, known))
        return
    with (
        nullcontext(named)
        if named
        else started_workers(
            *(flags, assignments, LiveOptions(server_python, ready_check_timeout_sec), log_dir),
            weights=entitled,
            parts=held.parts,
        )
    ) as routed:
        serving = serve_router(
            *(config_of(routed), host, port),
            grace_s=grace,
            on_ready=typer.echo,
            tls=tls,
            traces=traces,
        )
        try:
            asyncio.run(serving)
        finally:
            traces.close()


def _weights(text: str | None, keys: Mapping[str, str] | None) -> dict[str, float]:
    """Return the clients' weights. Raises UsageError for a wrong one, or one without a key."""
    from fairbench.config.weights import parse_weights

    weights = checked_weights(parse_weights(text) or {})
    known = set(with_tenants(keys.values())) if keys is not None else weights
    for name in weights:
        if name not in known:
            raise unknown_name("client in --weights", name, known)
    return weights


def _own(
    weights: Mapping[str, float], flagged: Mapping[str, float], filed: Mapping[str, float]
) -> dict[str, float]:
    """Return the weights that come from flags or are missing in the keys file."""
    return {one: weight for one, weight in weights.items() if one in flagged or one not in filed}


def _given(context: typer.Context, names: tuple[str, ...]) -> list[str]:
    """Return the parameters that were given on the command line."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
