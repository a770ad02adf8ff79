"""The router's configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

from fairbench.config.gateway import SERVED_DETECTOR
from fairbench.live.headers import BODY_CLIENT
from fairbench.live.http_server import MAX_BODY_BYTES
from fairbench.live.processes.addresses import WorkerAddress
from fairbench_serve.deadlines import Promises
from fairbench_serve.flags import SERVE
from fairbench_serve.keys_file import WorkerKeys


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """The router by its name and ``NAME.PARAM`` settings, the workers, and the limits.

    ``weights`` are the clients' entitlements, 1 by default. ``keys`` maps API keys to clients;
    without them requests name their client. With ``keys_file``, its keys, weights and quotas are
    used and read again when it changes; ``weights`` override the file's. ``client_from`` are the
    body fields that name the client without a header, strongest first. ``tokenizer`` is a
    tokenizer.json, without which tokens are approximated. ``max_queue`` limits the unfinished
    requests, most of which wait at the workers, and ``max_queue_per_client`` those of each client
    (None: limited only when other clients need slots). ``max_body_bytes`` limits a body,
    ``max_bodies_bytes`` all bodies together (None: a quarter of the machine's memory).
    ``vocab_size`` is the model's, None if the workers report it. ``patterns`` lets clients send
    regular expressions and grammars, which engines evaluate. A worker that fails a health check, or
    does not answer it within ``health_timeout_s``, is out of rotation until it passes one; so is a
    worker that has requests and produces nothing for ``stall_s``. ``local`` is the local scheduler
    that the workers should run, None if unspecified.

    ``gateway`` is the policy of a queue before the router, None if there is none, and
    ``saturation`` its detector. ``limits_clients`` limits each client's requests at the workers,
    unless ``settings`` do. If the gateway's detector is ``concurrency`` and ``settings`` do not
    limit the requests of a worker, the workers' own limits are used. ``promises`` are the deadlines
    of requests.

    Without keys the router only answers requests to an address, to ``localhost``, to this machine's
    name or to one of ``hosts``; ``*`` there allows any. ``router_id`` is this router's name among
    others.

    ``admin_port`` is the port of the admin endpoint, None for none, ``admin_key`` its key,
    ``worker_keys`` the keys of workers that are added there; ``workers`` have their own. ``peers``
    are the URLs of other routers before the same workers, and ``peer_key`` their common key.
    """

    router: str
    workers: Sequence[WorkerAddress]
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    keys: Mapping[str, str] | None = None
    keys_file: Path | None = None
    client_from: Sequence[str] = (BODY_CLIENT,)
    tokenizer: str | None = None
    max_queue: int = SERVE["max_queue"].default
    max_queue_per_client: int | None = None
    vocab_size: int | None = None
    patterns: bool = False
    max_body_bytes: int = MAX_BODY_BYTES
    max_bodies_bytes: int | None = None
    health_interval_s: float = 5.0
    health_timeout_s: float = 20.0
    stall_s: float = SERVE["stall_timeout"].default
    local: str | None = None
    gateway: str | None = None
    saturation: str = SERVED_DETECTOR
    limits_clients: bool = False
    worker_keys: WorkerKeys = field(default_factory=WorkerKeys)
    admin_port: int | None = None
    admin_key: str | None = field(default=None, repr=False)
    peers: Sequence[str] = ()
    peer_key: str | None = field(default=None, repr=False)
    promises: Promises = field(default_factory=Promises)
    hosts: Collection[str] = ()
    router_id: str = field(default_factory=lambda: token_hex(8))
