"""Hosts: the names of this server, so that pages of other web sites cannot use it.

A page can have its own name resolve to an address of this machine or network (DNS rebinding), and
a browser then takes the server for that page's own. The browser still sends the name.
"""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import web

from fairbench.live.processes.addresses import LOOPBACK
from fairbench.live.router.problem import Problem

LOOPBACK_HOSTS = (LOOPBACK, "localhost", "::1")  # also at this end of a tunnel
ANY_HOST = "*"


def check_host(http: web.Request, allowed: Collection[str], *, addresses: bool) -> None:
    """Raise Problem (403) for a request that a page of another site may have sent.

    Args:
        http: The request. Without a ``Host``, which every browser sends, it is no page's.
        allowed: Names by which the server may be asked, in lower case.
        addresses: Whether it may be asked by any IP address too, which no page can claim.
    """
    said = http.headers.get("Host")
    host = None if said is None else _name(f"//{said}")
    if said is not None and not (host in allowed or (addresses and _is_address(host))):
        raise _foreign(f"host {said[:64]!r}")
    origin = http.headers.get("Origin")
    if origin is not None and _name(origin) not in (*allowed, host):
        raise _foreign(f"origin {origin[:64]!r}")


def _name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_address(host: str | None) -> bool:
    try:
        ip_address(host or "")
    except ValueError:
        return False
    return True


def _foreign(what: str) -> Problem:
    return Problem(
        HTTPStatus.FORBIDDEN,
        f"{what} is not a host name of this server; the operator can add it with --allow-host",
    )
