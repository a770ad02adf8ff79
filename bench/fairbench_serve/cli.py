"""The command ``fairbench serve``, which runs a router in front of workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Annotated, Any, Unpack

import typer
from typer import Option

from fairbench.cli.options import takes
from fairbench.config.parse_flags import value_or_default
from fairbench.errors import UsageError, unknown_name
from fairbench.schedulers.base import checked_weights
from fairbench.tenants import with_tenants
from fairbench_load.plugin_config import allow_untested
from fairbench_load.processes.environment import require_live_extra
from fairbench_serve.flags import SERVE, ServeFlags

# options that apply only to workers that `fairbench serve` starts
ONLY_WITH_DP = (
    *("local", "backend", "model", "gpu", "tp", "load_format", "server_args", "time_scale"),
    *("mem_fraction_static", "server_python", "allow_untested_release"),
    *("ready_check_timeout_sec", "log_dir"),
)
ONLY_WITH_URLS = ("worker_key", "worker_key_file", "peer", "peer_key_file")


@takes(ServeFlags)
def serve(
    client_limit: Annotated[
        bool,
        Option(
            "--client-limit/--no-client-limit",
            help="Limit each client's share of the workers. By default, a client may use at most "
            "four fifths of the workers, even if no other client sends requests. The settings "
            "gateway.client_limit, gateway.client_requests and gateway.client_reserve change "
            "the limits of clients.",
        ),
    ] = True,
    **flags: Unpack[ServeFlags],
) -> None:
    """Route the requests of clients to workers, with OpenAI's APIs.

    The router prints its URL when it is ready to serve. The client of a request is identified by
    the header x-fairbench-client, by `user` in the body (see --client-from), or by the API key.
    """
    from fairbench.schedulers.registry import split_pair
    from fairbench_load.backends.base import LiveOptions
    from fairbench_serve.plan import (
        Routed,
        client_fields,
        held_by,
        named_workers,
        peers_by,
        plan_text,
        planned_workers,
        started_workers,
    )

    require_live_extra()
    from fairbench_load.processes.addresses import LOOPBACK
    from fairbench_serve.addresses import reserved
    from fairbench_serve.app import serve_router
    from fairbench_serve.config import RouterConfig, promises
    from fairbench_serve.keys_file import admin_key_of, read_keys, worker_keys
    from fairbench_serve.spans import Traces, otel_traces
    from fairbench_serve.tls import server_tls

    value = partial(value_or_default, flags, SERVE)
    _check_together(flags)
    if flags.get("allow_untested_release"):
        allow_untested()
    logging.basicConfig(level=logging.INFO, format="fairbench: %(message)s")
    host, port = value("host"), value("port")
    known = read_keys(keys_file) if (keys_file := flags.get("keys")) else None
    clients = known.keys if known else None
    said_by = client_fields(flags.get("client_from"), keys=clients is not None)
    flagged = _weights(flags.get("weights"), clients)
    entitled = {**known.weights, **flagged} if known else flagged
    of_workers = worker_keys(flags.get("worker_key"), flags.get("worker_key_file"))
    promised = promises(flags.get("goodput"))
    traces = otel_traces() if flags.get("otel") else Traces()
    read_tls = partial(server_tls, flags.get("tls_cert"), flags.get("tls_key"))
    tls = read_tls()
    admin_port = flags.get("admin_port")
    admin_key = admin_key_of(admin_port, flags.get("admin_key_file"), known, of_workers)
    held = held_by(
        *(flags.get("gateway"), flags.get("saturation"), flags.get("max_inflight_per_worker")),
        _settings(flags),
    )
    scheduler, router = value("scheduler"), flags.get("router")
    asked = not (router or flags.get("gateway")) or "scheduler" in flags
    peers = peers_by(
        *(flags.get("peer"), flags.get("peer_key_file"), router or split_pair(scheduler)[0]),
        *(held, admin_port),
    )
    body_memory = flags.get("max_body_memory")

    def config_of(routed: Routed) -> RouterConfig:
        return RouterConfig(
            router=routed.router,
            workers=routed.workers,
            settings=routed.settings,
            weights={
                one: weight
                for one, weight in routed.weights.items()
                if one in flagged or one not in known.weights
            }
            if known
            else routed.weights,
            keys=clients,
            keys_file=keys_file,
            client_from=said_by,
            tokenizer=flags.get("tokenizer"),
            max_queue=value("max_queue"),
            max_queue_per_client=flags.get("max_queue_per_client"),
            max_bodies_bytes=body_memory and body_memory << 20,
            vocab_size=flags.get("vocab_size"),
            patterns=flags.get("allow_regex", False),
            stall_s=value("stall_timeout"),
            local=routed.local,
            gateway=held.policy,
            saturation=held.saturation,
            limits_clients=client_limit,
            worker_keys=of_workers,
            hosts=(host, *(flags.get("allow_host") or ())),
            admin_port=admin_port,
            admin_key=admin_key,
            promises=promised,
            peers=peers.urls,
            peer_key=peers.key,
        )

    named = (
        named_workers(
            *(urls, scheduler, router, held.settings, entitled),
            parts=(*held.parts, *peers.parts),
            local=split_pair(scheduler)[1] if asked else None,
            keys=of_workers,
            all_named=admin_port is None,
        )
        if (urls := flags.get("worker_url"))
        else None
    )
    started = _started(flags)
    if flags.get("dry_run"):
        planned = named or planned_workers(started, held.settings, entitled, parts=held.parts)
        typer.echo(plan_text(config_of(planned), planned.spec, known))
        return
    timeout_s = value("ready_check_timeout_sec")
    with (
        reserved(host, port, f"--host {host} --port {port}"),
        reserved(LOOPBACK, admin_port or 0, f"--admin-port {admin_port}"),
        nullcontext(named)
        if named
        else started_workers(
            *(started, held.settings, LiveOptions(flags.get("server_python"), timeout_s)),
            value("log_dir"),
            weights=entitled,
            parts=held.parts,
        ) as routed,
    ):
        serving = serve_router(
            *(config_of(routed), host, port),
            grace_s=value("grace"),
            on_ready=typer.echo,
            tls=tls,
            read_tls=read_tls,
            traces=traces,
        )
        try:
            asyncio.run(serving)
        finally:
            traces.close()


def _check_together(flags: ServeFlags) -> None:
    """Raise UsageError unless the flags either name running workers or start workers."""
    if bool(flags.get("worker_url")) == bool(flags.get("dp")):
        raise UsageError(
            "workers: give either --worker-url, for workers that already run, or --dp, to "
            "start workers"
        )
    only, other = (ONLY_WITH_URLS, "worker-url") if flags.get("dp") else (ONLY_WITH_DP, "dp")
    if misplaced := [name for name in only if name in flags]:
        raise UsageError(f"{SERVE[misplaced[0]].option} needs --{other}")


def _settings(flags: ServeFlags) -> dict[str, Any]:
    """Return the settings that the user chose; raise UsageError if a setting is given twice."""
    settings, name = dict(flags.get("settings") or {}), "engine.mem_fraction_static"
    if (fraction := flags.get("mem_fraction_static")) is None:
        return settings
    if name in settings:
        raise UsageError(
            f"--mem-fraction-static {fraction} and --set {name} set the same parameter: give only "
            "one of them"
        )
    return {**settings, name: fraction}


def _started(flags: ServeFlags) -> dict[str, Any]:
    backend = ("tp", "load_format", "time_scale", "server_args")
    keys = ("router", "local", "dp", "model", "gpu")
    return {
        "scheduler": value_or_default(flags, SERVE, "scheduler"),
        **{key: value for key, value in flags.items() if key in keys},
        "backend": {
            "kind": value_or_default(flags, SERVE, "backend"),
            **{key: value for key, value in flags.items() if key in backend},
        },
    }


def _weights(given: Mapping[str, float] | None, keys: Mapping[str, str] | None) -> dict[str, float]:
    """Return the weights of the clients.

    Raises UsageError for an invalid weight or an unknown client.
    """
    weights = checked_weights(given or {})
    known = set(with_tenants(keys.values())) if keys is not None else weights
    for name in weights:
        if name not in known:
            raise unknown_name("client in --weights", name, known)
    return weights
