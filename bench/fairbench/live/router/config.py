"""What a router process is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from fairbench.errors import UsageError
from fairbench.live.servers.address import WorkerAddress


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """The router by its name and ``NAME.PARAM`` settings, the workers, and the limits.

    ``keys`` maps API keys to clients; without them a request says whose it is. ``tokenizer`` is a
    tokenizer.json, without which tokens are approximated. ``max_queue`` bounds the requests that
    are under way, most of which wait at the workers. A worker that fails a health check, or does
    not answer it within ``health_timeout_s``, is out of rotation until it passes one.
    """

    router: str
    workers: Sequence[WorkerAddress]
    settings: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] | None = None
    tokenizer: str | None = None
    max_queue: int = 10_000
    max_body_bytes: int = 64 * 2**20
    health_interval_s: float = 5.0
    health_timeout_s: float = 20.0


def parse_worker(text: str) -> WorkerAddress:
    """A worker as ``URL[,kv=tcp://...[,replay=tcp://...]]``. Raises UsageError."""
    url, *parts = text.split(",")
    ports: dict[str, str] = {}
    for part in parts:
        name, _, endpoint = part.partition("=")
        if name not in ("kv", "replay") or not _is_address(endpoint, ("tcp",)):
            raise UsageError(
                f"--worker-url {text}: {part!r} is neither kv=tcp://HOST:PORT nor "
                "replay=tcp://HOST:PORT"
            )
        ports[name] = endpoint
    if not _is_address(url, ("http", "https")):
        raise UsageError(f"--worker-url {text}: {url!r} is not an http://HOST[:PORT] address")
    return WorkerAddress(url.rstrip("/"), ports.get("kv"), ports.get("replay"))


def _is_address(url: str, schemes: Sequence[str]) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in schemes and bool(parts.hostname) and (port or "tcp" not in schemes) != 0
