"""The plan of ``fairbench serve``: gateway and peers from flags, and the plan as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairbench.config.flags.flag import split_commas
from fairbench.errors import UsageError, unknown_name
from fairbench.files.reader import read_key
from fairbench.files.toml_text import toml_value
from fairbench.live.headers import BODY_CLIENT, BODY_CLIENTS

if TYPE_CHECKING:
    from fairbench.config import ExperimentSpec
    from fairbench_serve.config import RouterConfig
    from fairbench_serve.keys_file import KeysFile

AUTO = "auto"


class Held(NamedTuple):
    """The gateway's policy (None without a gateway), its detector, and all settings."""

    policy: str | None
    saturation: str
    settings: Mapping[str, Any]
    parts: tuple[str, ...]


def held_by(
    gateway: str | None, saturation: str | None, most: str | None, settings: Mapping[str, Any]
) -> Held:
    """Return the gateway from the flags. Raises UsageError for a conflict."""
    from fairbench.config.gateway import SERVED_DETECTOR, served_admission, served_gateway
    from fairbench.schedulers.gateway.registry import ADMISSION, GATEWAY, NO_GATEWAY

    parts = (ADMISSION,) if served_admission(settings) else ()
    if gateway in (None, NO_GATEWAY):
        for flag, text in (("saturation", saturation), ("max-inflight-per-worker", most)):
            if text is not None:
                raise UsageError(f"--{flag} {text} needs a gateway: give --gateway")
        return Held(None, SERVED_DETECTOR, settings, parts)
    detector = saturation or SERVED_DETECTOR
    if most is not None:
        settings = _with_most(most, detector, settings)
    served_gateway(gateway, detector, settings)
    return Held(gateway, detector, settings, (gateway, detector, GATEWAY, *parts))


def client_fields(text: str | None, *, keys: bool) -> tuple[str, ...]:
    """Return the fields of ``--client-from``. Raises UsageError for others or with ``--keys``."""
    if text is None:
        return (BODY_CLIENT,)
    if keys:
        raise UsageError(
            f"--client-from {text} cannot be combined with --keys, because the API key alone "
            "identifies the client"
        )
    names = split_commas("--client-from", text)
    for name in names:
        if name not in BODY_CLIENTS:
            raise unknown_name("field in --client-from", name, BODY_CLIENTS)
    return tuple(names)


def _with_most(most: str, detector: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    from fairbench.config.gateway import MOST_REQUESTS, SERVED_DETECTOR

    flag = f"--max-inflight-per-worker {most}"
    if detector != SERVED_DETECTOR:
        raise UsageError(f"{flag} needs --saturation {SERVED_DETECTOR}")
    if MOST_REQUESTS in settings:
        raise UsageError(
            f"{flag} and --set {MOST_REQUESTS} set the same limit: give only one of them"
        )
    if most == AUTO:
        return settings
    if not (most.isascii() and most.isdigit() and 1 <= int(most) <= 2**31):
        raise UsageError(f"{flag}: must be a whole number of at least 1, or {AUTO}")
    return {**settings, MOST_REQUESTS: int(most)}


def plan_text(
    config: RouterConfig, spec: ExperimentSpec | None, known: KeysFile | None = None
) -> str:
    """Return the policy as TOML with every parameter and clients' names, without keys.

    ``spec`` describes the workers that would be started, ``known`` is the keys file. Raises
    UsageError as starting the workers would.
    """
    from fairbench.config.gateway import (
        HEADROOM,
        MOST_REQUESTS,
        SERVED_DETECTOR,
        served_admission,
        served_gateway,
    )
    from fairbench.schedulers.params import as_settings, make_params
    from fairbench.schedulers.registry import router_class

    params = make_params(config.router, router_class(config.router).Params, config.settings)
    settings = as_settings(config.router, params)
    plan: dict[str, Any] = {"router": config.router}
    local = config.local if spec is None else spec.local
    if local is not None:
        plan["local"] = local
    if spec is not None:
        plan |= {"dp": spec.dp, "backend": spec.backend and spec.backend.kind}
        settings |= {k: v for k, v in spec.settings.items() if k.startswith(f"{spec.local}.")}
    else:
        plan["workers"] = [worker.url for worker in config.workers]
    if config.gateway is not None:
        plan |= {"gateway": config.gateway, "saturation": config.saturation}
        parts = served_gateway(config.gateway, config.saturation, config.settings)
        if config.saturation == SERVED_DETECTOR and MOST_REQUESTS not in config.settings:
            parts = {HEADROOM: AUTO} | parts | {MOST_REQUESTS: AUTO}
        settings = parts | settings
    settings = served_admission(config.settings) | settings
    plan["client_limit"] = config.limits_clients
    plan["max_queue"] = config.max_queue
    plan["max_queue_per_client"] = config.max_queue_per_client or config.max_queue
    tables: dict[str, Mapping[str, Any]] = {"weights": config.weights, "settings": settings}
    tables["goodput"] = config.promises.table()
    if known is not None:
        plan["clients"] = sorted(set(known.keys.values()))
        tables |= {
            "weights": {**known.weights, **config.weights},
            "quotas": {one: quota.table() for one, quota in known.quotas.items()},
        }
    lines = [f"{key} = {toml_value(value)}" for key, value in plan.items()]
    for name, table in tables.items():
        lines += ["", f"[{name}]"] if table else []
        lines += [f"{toml_value(key)} = {toml_value(value)}" for key, value in table.items()]
    return "\n".join(lines)


class PeersAsked(NamedTuple):
    """The peers' addresses, the common key, and the parts that may have settings."""

    urls: tuple[str, ...]
    key: str | None
    parts: tuple[str, ...]


def peers_by(
    urls: Sequence[str] | None, key_file: Path | None, router: str, held: Held, admin: int | None
) -> PeersAsked:
    """Return the peers from the flags. Raises UsageError for a conflict, DataError for a key.

    Peers exclude an admin port: workers would come and go, and routers would number them
    differently.
    """
    from fairbench.config.cluster import served_routers
    from fairbench.live.processes.addresses import parse_worker
    from fairbench.schedulers.gateway.registry import admission_params
    from fairbench.schedulers.peers.params import ROUTERS
    from fairbench.schedulers.registry import router_class
    from fairbench_serve.peers import check_peers

    if not urls:
        if key_file is not None:
            raise UsageError("--peer-key-file needs --peer")
        return PeersAsked((), None, ())
    if key_file is None:
        raise UsageError(
            f"--peer {urls[0]} needs --peer-key-file, the file with the key of all routers"
        )
    if admin is not None:
        raise UsageError(
            f"--peer {urls[0]} cannot be combined with --admin-port, because all routers must "
            "have the same workers"
        )
    if admission_params(held.settings).is_on:
        raise UsageError(f"--peer {urls[0]} cannot be combined with admission.policy")
    for name in (router, held.policy):
        if held.settings.get(f"{name}.tenants") is not None:
            raise UsageError(f"--peer {urls[0]} cannot be combined with {name}.tenants")
    check_peers(router_class(router), router, held.policy)
    served_routers(held.settings)
    found = tuple(parse_worker(url, "--peer").url for url in urls)
    return PeersAsked(found, read_key(key_file, str(key_file)), (ROUTERS,))
