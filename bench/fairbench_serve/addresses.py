"""Comparison of workers' addresses, and reservation of the router's port."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from fairbench.errors import UsageError
from fairbench_load.processes.addresses import LOOPBACK, USUAL_PORTS


def door_of(url: str) -> tuple[int, str]:
    """Return the port and the path of a URL, with a default port if the URL states none."""
    parts = urlsplit(url)
    path = "/".join(part for part in parts.path.split("/") if part not in ("", "."))
    return parts.port or USUAL_PORTS[parts.scheme], path


def hosts_of(url: str) -> frozenset[str]:
    """Look up the IP addresses of a URL's host, which may take seconds.

    If the host is this machine, the addresses include ``LOOPBACK``. If the host's name cannot be
    resolved, the name is returned instead of addresses.
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
    """Return one of ``others`` that leads to the same server as ``url``, or None.

    The DNS look-ups may take seconds. URLs with different full host names count as different
    servers, because a common IP address may belong to a gateway in front of several servers.
    ``found`` caches the IP addresses of each URL between calls.
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
    """Return whether two host names may mean the same host.

    Different full names such as a.example.com and b.example.com count as different hosts.
    """
    short, full = sorted((one, other), key=len)
    is_own = {one, other} & {"localhost", socket.gethostname().lower()}
    return bool(is_own) or _is_ip(one) or _is_ip(other) or f"{full}.".startswith(f"{short}.")


def _address(text: str) -> str:
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
    """Test whether an IP address belongs to this machine by binding a socket to the address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.bind((address, 0))
    except OSError:
        return False
    return True


@contextmanager
def reserved(host: str, port: int, shown: str) -> Iterator[int]:
    """Reserve a port while the ``with`` block runs, so that no starting worker can take the port.

    The router can listen at the reserved port, because it also binds its socket with SO_REUSEADDR.

    Args:
        host: Address at which the router listens.
        port: Port number; 0 means that any free port is used.
        shown: Command-line options that the error message names.

    Yields:
        The port number.

    Raises:
        UsageError: The address is not available.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            kept.bind((host, port))
        except OSError as error:
            raise UsageError(f"{shown}: {error.strerror}") from None
        yield int(kept.getsockname()[1])
