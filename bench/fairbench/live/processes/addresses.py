"""Addresses of workers, their comparison, and the ports of servers."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from fairbench.errors import UsageError

LOOPBACK = "127.0.0.1"
USUAL_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """A worker's HTTP root URL, and the addresses at which the worker publishes KV events, if any.

    ``key`` is the API key that the worker expects in each request. No output of fairbench shows the
    key.
    """

    url: str  # for example http://127.0.0.1:30000
    kv_events: str | None = None  # for example tcp://127.0.0.1:5557
    kv_replay: str | None = None
    key: str | None = field(default=None, repr=False)

    @property
    def authorization(self) -> Mapping[str, str]:
        """The HTTP header with the worker's API key; {} if the worker requires no key."""
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    def as_option(self) -> str:
        """Return the address in the format of ``parse_worker``, without the API key."""
        kv = "" if self.kv_events is None else f",kv={self.kv_events}"
        replay = "" if self.kv_replay is None else f",replay={self.kv_replay}"
        return f"{self.url}{kv}{replay}"


def parse_worker(text: str, name: str = "--worker-url") -> WorkerAddress:
    """Parse ``URL[,kv=tcp://...[,replay=tcp://...]]``.

    Raises UsageError with the option ``name``.
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
            f"{name} {text}: replay needs kv, because it repeats the KV events that were "
            "missed; give kv, too"
        )
    # Equal addresses must have equal texts, so addresses are normalised.
    root = urlsplit(url)
    netloc = root.netloc.lower().removesuffix(f":{USUAL_PORTS[root.scheme]}")
    canonical = root._replace(netloc=netloc).geturl().rstrip("/")
    return WorkerAddress(canonical, ports.get("kv"), ports.get("replay"))


def door_of(url: str) -> tuple[int, str]:
    """Return the port and the path of a URL, which are equal for all names of the URL's host."""
    parts = urlsplit(url)
    path = "/".join(part for part in parts.path.split("/") if part not in ("", "."))
    return parts.port or USUAL_PORTS[parts.scheme], path


def hosts_of(url: str) -> frozenset[str]:
    """Return the IP addresses of a URL's host. The lookup may take seconds.

    For a name of this machine, the result also contains ``LOOPBACK``. For an unknown name, the
    result contains only the name.
    """
    host = _host(url)
    try:
        found = {str(one[4][0]) for one in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return frozenset((host,))
    addresses = set(map(_address, found))
    if not _is_ip(host) and any(map(_is_own, found)):
        addresses.add(LOOPBACK)
    return frozenset(addresses)


def same_worker(
    url: str, others: Collection[str], found: dict[str, frozenset[str]] | None = None
) -> str | None:
    """Return another URL that leads to the same server as ``url``, or None if there is none.

    Looking up host names may take seconds.

    Two different full host names with a common IP address count as different servers, because the
    address may belong to a gateway in front of two servers. ``found`` keeps looked-up addresses
    between calls.
    """
    known = {} if found is None else found

    def hosts(one: str) -> frozenset[str]:
        if one not in known:
            known[one] = hosts_of(one)
        return known[one]

    def is_same(one: str) -> bool:
        return _may_be_same(_host(one), _host(url)) and bool(hosts(one) & hosts(url))

    beside = [other for other in others if door_of(other) == door_of(url)]
    return next((one for one in beside if one == url or is_same(one)), None)


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").rstrip(".")


def _may_be_same(one: str, other: str) -> bool:
    """Return whether two host names may mean one host: one is an address, local or short."""
    short, full = sorted((one, other), key=len)
    is_own = {one, other} & {"localhost", socket.gethostname().lower()}
    return bool(is_own) or _is_ip(one) or _is_ip(other) or f"{full}.".startswith(f"{short}.")


def _address(text: str) -> str:
    """Return an IP address in standard form; each address of this machine becomes ``LOOPBACK``."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    return LOOPBACK if address.is_unspecified or address == IPv6Address(1) else str(address)


def _is_ip(host: str) -> bool:
    """Return whether a text is an IP address in any notation, such as 127.1."""
    try:
        return bool(ip_address(host.partition("%")[0]))
    except ValueError:
        pass
    try:
        return bool(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return False


def _is_own(address: str) -> bool:
    """Return whether an IP address belongs to this machine, so that a socket can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.bind((address, 0))
    except OSError:
        return False
    return True


def _is_endpoint(text: str) -> bool:
    """Return whether a text is an address for ZeroMQ: TCP, or IPC on this machine."""
    name = text.removeprefix("ipc://")
    local = name != text and name.removeprefix("@") != "" and name.isprintable()
    return local or _is_address(text, ("tcp",))


def _is_address(url: str, schemes: Sequence[str]) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    # ``urlsplit`` would remove line ends without an error.
    if not (url.isascii() and url.isprintable()):
        return False
    if parts.scheme not in schemes or not parts.hostname or port == 0:
        return False
    if port is None and "tcp" in schemes:
        return False
    return not ("@" in parts.netloc or parts.query or parts.fragment)


def free_ports(count: int) -> list[int]:
    """Return ``count`` different ports that are free at present.

    Another process may take a port before the server binds the port. Callers must look for this
    error in the log of the server, and retry.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def reserved(host: str, port: int, shown: str) -> Iterator[int]:
    """Bind a port inside the block, so that no worker that is started meanwhile takes the port.

    A server can listen at the port inside the block, because the port is bound with SO_REUSEPORT
    and no socket listens there.

    Args:
        host: The address at which to listen.
        port: Port number; 0 means any free port.
        shown: The options that an error message names.

    Yields:
        The port number.

    Raises:
        UsageError: The port or address is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            kept.bind((host, port))
        except OSError as error:
            raise UsageError(f"{shown}: {error.strerror}") from None
        yield int(kept.getsockname()[1])
