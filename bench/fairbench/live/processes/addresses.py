"""Addresses: where a worker listens, and the format of an address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from fairbench.errors import UsageError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """A worker's HTTP root and, if published, the addresses of its KV events and their replay.

    ``key`` is required with every request, and is shown nowhere.
    """

    url: str  # http://127.0.0.1:PORT
    kv_events: str | None = None  # tcp://127.0.0.1:PORT
    kv_replay: str | None = None
    key: str | None = field(default=None, repr=False)

    @property
    def authorization(self) -> Mapping[str, str]:
        """The header with the worker's key; empty if the worker needs none."""
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    def as_option(self) -> str:
        """Return the address in the format of ``parse_worker``, without the key."""
        kv = "" if self.kv_events is None else f",kv={self.kv_events}"
        replay = "" if self.kv_replay is None else f",replay={self.kv_replay}"
        return f"{self.url}{kv}{replay}"


def parse_worker(text: str, name: str = "--worker-url") -> WorkerAddress:
    """Parse ``URL[,kv=tcp://...[,replay=tcp://...]]``. Raises UsageError, citing ``name``."""
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
            f"{name} {text}: replay needs kv, because it repeats the KV events that were "
            "missed; give kv, too"
        )
    return WorkerAddress(_canonical(url), ports.get("kv"), ports.get("replay"))


def _canonical(url: str) -> str:
    """Return the address in canonical form, so that equal addresses have equal texts."""
    parts = urlsplit(url)
    usual = {"http": ":80", "https": ":443"}[parts.scheme]
    return parts._replace(netloc=parts.netloc.lower().removesuffix(usual)).geturl().rstrip("/")


def _is_endpoint(text: str) -> bool:
    """Return whether ZeroMQ can connect to an address, by TCP or on this machine."""
    name = text.removeprefix("ipc://")
    local = name != text and name.removeprefix("@") != "" and name.isprintable()
    return local or _is_address(text, ("tcp",))


def _is_address(url: str, schemes: Sequence[str]) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    if not (url.isascii() and url.isprintable()):  # urlsplit removes line ends
        return False
    if parts.scheme not in schemes or not parts.hostname or port == 0:
        return False
    if port is None and "tcp" in schemes:
        return False
    return not ("@" in parts.netloc or parts.query or parts.fragment)
