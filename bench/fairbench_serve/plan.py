"""Gateway, peers and workers of ``fairbench serve``, as its flags describe them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairbench.config import ExperimentSpec
from fairbench.config.defaults import SPELLINGS, table_of
from fairbench.config.parse_flags import STARTED, split_commas
from fairbench.config.resolve import resolve
from fairbench.config.settings import ENGINE
from fairbench.errors import UsageError, unknown_name, writing
from fairbench.execute.tasks import interruptible
from fairbench.files.formats import toml_value
from fairbench.files.reader import read_key
from fairbench.schedulers.base import checked_weights
from fairbench.schedulers.gateway.registry import ADMISSION
from fairbench.schedulers.registry import params_owner, router_class, split_pair
from fairbench_load.backends.base import LiveOptions
from fairbench_load.backends.workers import check_live, running_workers
from fairbench_load.headers import BODY_CLIENT, BODY_CLIENTS
from fairbench_load.kinds import LoadedBackend
from fairbench_load.processes.addresses import WorkerAddress, parse_worker
from fairbench_serve.addresses import same_worker

if TYPE_CHECKING:
    from fairbench_serve.config import RouterConfig
    from fairbench_serve.keys_file import (
        KeysFile,
        WorkerKeys,
    )


AUTO = "auto"  # value of --max-inflight-per-worker for the limit that each worker reports


class GatewayChoice(NamedTuple):
    """The gateway that the flags describe; ``policy`` is None without a gateway.

    ``settings`` holds all settings, and ``parts`` names the components that may have settings.
    """

    policy: str | None
    saturation: str
    settings: Mapping[str, Any]
    parts: tuple[str, ...]


def held_by(
    gateway: str | None, saturation: str | None, most: str | None, settings: Mapping[str, Any]
) -> GatewayChoice:
    """Return the gateway policy, saturation detector and settings that the flags describe.

    Raises UsageError if flags contradict each other.
    """
    from fairbench.schedulers.gateway.registry import (
        ADMISSION,
        GATEWAY,
        NO_GATEWAY,
        default_detector,
    )
    from fairbench_serve.served_settings import SERVED_DETECTOR, served_admission, served_gateway

    parts = (ADMISSION,) if served_admission(settings) else ()
    if gateway in (None, NO_GATEWAY):
        for flag, text in (("saturation", saturation), ("max-inflight-per-worker", most)):
            if text is not None:
                raise UsageError(f"--{flag} {text} needs a gateway: give --gateway")
        return GatewayChoice(None, SERVED_DETECTOR, settings, parts)
    detector = saturation or default_detector(gateway, SERVED_DETECTOR)
    if most is not None:
        settings = _with_most(most, detector, settings)
    served_gateway(gateway, detector, settings)
    return GatewayChoice(gateway, detector, settings, (gateway, detector, GATEWAY, *parts))


def client_fields(text: str | None, *, keys: bool) -> tuple[str, ...]:
    """Return the body fields that ``--client-from`` lists.

    Raises UsageError for an invalid list, or for a list together with ``--keys``.
    """
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
    from fairbench_serve.served_settings import MOST_REQUESTS, SERVED_DETECTOR

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
    """Return the configuration as TOML, with all parameters and client names, but no API keys.

    ``spec`` describes the workers to start, if any, and ``known`` is the content of the key file,
    if any. Raises UsageError if the workers could not be started.
    """
    from fairbench.schedulers.params import as_settings, make_params
    from fairbench.schedulers.registry import router_class
    from fairbench_serve import served_settings

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
        parts = served_settings.served_gateway(config.gateway, config.saturation, config.settings)
        if (
            config.saturation == served_settings.SERVED_DETECTOR
            and served_settings.MOST_REQUESTS not in config.settings
        ):
            parts = {served_settings.HEADROOM: AUTO} | parts | {served_settings.MOST_REQUESTS: AUTO}
        settings = parts | settings
    settings = served_settings.served_admission(config.settings) | settings
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
    """The peers' URLs, their common key, and the names of components that may have settings."""

    urls: tuple[str, ...]
    key: str | None
    parts: tuple[str, ...]


def peers_by(
    urls: Sequence[str] | None,
    key_file: Path | None,
    router: str,
    held: GatewayChoice,
    admin: int | None,
) -> PeersAsked:
    """Return the peer routers that the flags describe.

    Raises UsageError or DataError if the flags cannot be combined. Peers cannot be combined with an
    admin port, because each router would number an added worker differently.
    """
    from fairbench.schedulers.gateway.registry import admission_params
    from fairbench.schedulers.peers import ROUTERS
    from fairbench.schedulers.registry import router_class
    from fairbench_load.processes.addresses import parse_worker
    from fairbench_serve.peers import check_peers
    from fairbench_serve.served_settings import served_routers

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
            f"--peer {urls[0]} cannot be combined with --admin-port, which would change the "
            "workers of one router only"
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


log = logging.getLogger(__name__)


class Routed(NamedTuple):
    """A routing policy's name and settings (``NAME.PARAM``), and its workers.

    ``weights`` maps clients to weights (default 1). ``local`` is the local scheduler that running
    workers should have; None means any scheduler.
    """

    router: str
    settings: Mapping[str, Any]
    weights: Mapping[str, float]
    workers: Sequence[WorkerAddress]
    local: str | None = None
    spec: ExperimentSpec | None = None


def named_workers(
    urls: Sequence[str],
    scheduler: str,
    router: str | None,
    settings: Mapping[str, Any],
    weights: Mapping[str, float],
    *,
    parts: Collection[str],
    local: str | None,
    keys: WorkerKeys,
    all_named: bool,
) -> Routed:
    """Return the checked policy, settings and workers of a router whose workers already run.

    ``keys`` holds the API keys of workers. ``settings`` may contain parameters of the router and of
    the components in ``parts``. Raises UsageError for an invalid name or address, a repeated
    worker, an API key of an unknown worker, or a setting of an unused component.
    """
    name = router or split_pair(scheduler)[0]
    _check_settings(settings, *dict.fromkeys((params_owner(name), *parts)))
    workers = [parse_worker(url) for url in urls]
    found: dict[str, frozenset[str]] = {}
    for number, worker in enumerate(workers):
        twin = same_worker(worker.url, [earlier.url for earlier in workers[:number]], found)
        if twin is not None:
            shown = "" if twin == worker.url else f" (as {twin})"
            raise UsageError(
                f"--worker-url {worker.url}: this worker is given twice{shown}; give each worker "
                "once"
            )
    if all_named:  # No worker can join later, so every API key must belong to a given worker.
        keys.check_named([worker.url for worker in workers])
    return Routed(
        name, _served(name, settings), weights, [keys.signed(worker) for worker in workers], local
    )


def planned_workers(
    flags: Mapping[str, Any],
    settings: Mapping[str, Any],
    weights: Mapping[str, float],
    *,
    parts: Collection[str],
) -> Routed:
    """Return the workers that ``started_workers`` would start; raise UsageError for wrong flags."""
    if (kind := flags["backend"]["kind"]) not in STARTED:
        raise unknown_name("backend", kind, STARTED)
    # The router, not the workers that it starts, uses the clients' weights and admission control.
    before = {*SPELLINGS, *(key for key in settings if key.startswith(f"{ADMISSION}."))}
    spec = resolve(flags, {key: value for key, value in settings.items() if key not in before})
    if not (isinstance(spec.backend, LoadedBackend) and spec.backend.is_managed):
        raise UsageError(f"backend {kind}: fairbench serve cannot start servers of this kind")
    _check_settings(
        settings, *dict.fromkeys((params_owner(spec.router), spec.local, ENGINE, *parts))
    )
    moved = table_of({"weights": settings.get(f"{spec.local}.weights")})
    entitled = checked_weights(moved | dict(weights))
    # An experiment without a workload has no client names, and so cannot check weights.
    spec = spec.model_copy(update={"weights": entitled or None})
    given = {**settings, **spec.settings}
    return Routed(spec.router, _served(spec.router, given), entitled, (), spec=spec)


@contextmanager
def started_workers(
    flags: Mapping[str, Any],
    settings: Mapping[str, Any],
    options: LiveOptions,
    log_dir: Path,
    weights: Mapping[str, float],
    *,
    parts: Collection[str],
) -> Iterator[Routed]:
    """Start workers from the flags of ``fairbench run``, and stop them after the ``with`` block.

    ``parts`` names additional policies of the router that may have settings. Raises UsageError for
    an invalid flag, RunFailed if a worker does not start, and KeyboardInterrupt if the user
    interrupts the start.
    """
    planned = planned_workers(flags, settings, weights, parts=parts)
    assert planned.spec is not None
    check_live(planned.spec, options)
    with writing(log_dir, "--log-dir"):
        log_dir.mkdir(parents=True, exist_ok=True)
    with (
        interruptible() as interrupted,
        running_workers(
            planned.spec,
            log_dir,
            options,
            on_ready=lambda progress: log.info("workers ready: %d of %d", *progress),
            interrupted=interrupted,
        ) as workers,
    ):
        # The user interrupted the start of the workers.
        if interrupted():
            raise KeyboardInterrupt
        yield planned._replace(workers=workers.addresses)


def _served(router: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    served = router_class(router).served_params.items()
    return {f"{router}.{name}": value for name, value in served} | dict(settings)


def _check_settings(settings: Mapping[str, Any], *owners: str) -> None:
    for key in settings:
        if key.partition(".")[0] not in owners:
            parameters = " and ".join(f"{owner}.PARAM" for owner in owners)
            raise UsageError(f"--set {key}: only {parameters} can be set here")
