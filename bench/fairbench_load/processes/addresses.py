"""Normalised addresses of workers, and free ports for servers."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from fairbench.errors import UsageError

LOOPBACK = "127.0.0.1"
USUAL_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """A worker's HTTP root URL, and the addresses at which it publishes KV events, if any.

    ``key`` is the API key that the worker expects in each request; no output shows the key.
    """

    url: str
    kv_events: str | None = None
    kv_replay: str | None = None
    key: str | None = field(default=None, repr=False)

    @property
    def authorization(self) -> Mapping[str, str]:
        """The HTTP header with the worker's API key, or {} if the worker requires no key."""
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    def as_option(self) -> str:
        """Return the address in the format of ``parse_worker``, without the API key."""
        kv = "" if self.kv_events is None else f",kv={self.kv_events}"
        replay = "" if self.kv_replay is None else f",replay={self.kv_replay}"
        return f"{self.url}{kv}{replay}"


def parse_worker(text: str, name: str = "--worker-url") -> WorkerAddress:
    """Parse ``URL[,kv=tcp://...[,replay=tcp://...]]``.

    Raises UsageError, which names the option ``name``, for an invalid address.
    """
    url, *parts = text.split(",")
    ports: dict[str, str] = {}
    for part in parts:
        field, _, endpoint = part.partition("=")
        if field not in ("kv", "replay") or field in ports or not _is_endpoint(endpoint):
            raise UsageError(
                f"{name} {text}: {part!r} must be kv=tcp://HOST:PORT or "
                "replay=tcp://HOST:PORT (or ipc://NAME), each given once"
            )
        ports[field] = endpoint
    if not _is_address(url, ("http", "https")):
        raise UsageError(f"{name} {text}: {url!r} must be an address http://HOST[:PORT]")
    if "replay" in ports and "kv" not in ports:
        raise UsageError(
            f"{name} {text}: replay needs kv, because a replay repeats missed KV events; "
            "give kv, too"
        )
    # Addresses are normalised, so that two spellings of an address become the same string.
    root = urlsplit(url)
    netloc = root.netloc.lower().removesuffix(f":{USUAL_PORTS[root.scheme]}")
    canonical = root._replace(netloc=netloc).geturl().rstrip("/")
    return WorkerAddress(canonical, ports.get("kv"), ports.get("replay"))


def _is_endpoint(text: str) -> bool:
    """Return whether a text is a ZeroMQ address, that is, TCP or IPC on this machine."""
    name = text.removeprefix("ipc://")
    local = name != text and name.removeprefix("@") != "" and name.isprintable()
    return local or _is_address(text, ("tcp",))


def _is_address(url: str, schemes: Sequence[str]) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    # ``urlsplit`` silently removes line ends, so ``url`` itself is checked.
    if not (url.isascii() and url.isprintable()):
        return False
    if parts.scheme not in schemes or not parts.hostname or port == 0:
        return False
    if port is None and "tcp" in schemes:
        return False
    return not ("@" in parts.netloc or parts.query or parts.fragment)


def free_ports(count: int) -> list[int]:
    """Return ``count`` different ports that are free at present.

    Another process may take a free port before the caller's server uses the port. If the server's
    log reports that a port is already in use, callers must try other ports.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]
