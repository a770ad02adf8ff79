"""Identity: the client of a request, and whether a page of another web site sent it.

A page can make its own name resolve to an address of this machine or network (DNS rebinding); a
browser then takes the server for that page's own. The browser still sends the name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import blake2b
from hmac import compare_digest
from http import HTTPStatus
from ipaddress import ip_address
from secrets import token_bytes
from urllib.parse import urlsplit

from aiohttp import web

from fairbench.live import headers
from fairbench.live.json_errors import Problem, bad_request
from fairbench.live.processes.addresses import LOOPBACK

MAX_LENGTH = 128
# characters of the body's field, which may be an e-mail address or a sentence
MAX_BODY_LENGTH = 512
HASHED, HASH_BYTES = "user-", 10
LOOPBACK_HOSTS = (LOOPBACK, "localhost", "::1")  # also at this end of a tunnel
ANY_HOST = "*"
# Headers that decide about a request; proxies differ in which of two equal names they read.
SINGLE = (
    *(
        "Authorization",
        headers.API_KEY,
        "Host",
        "Origin",
        *headers.CLIENT_ALIASES,
        *headers.OBJECTIVE_ALIASES,
    ),
    *(headers.DEADLINE, headers.PROGRAM, headers.DEPTH, headers.OUTPUT_TOKENS),
)


class Keyring:
    """API keys by a keyed hash, so that the time of a look-up reveals nothing about keys."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._secret = token_bytes(32)
        self._owners = {self._hashed(key): client for key, client in keys.items()}

    def get(self, key: str, /) -> str | None:
        return self._owners.get(self._hashed(key))

    def _hashed(self, key: str) -> bytes:
        return blake2b(key.encode("utf-8", "surrogatepass"), key=self._secret).digest()


def check_bearer(request: web.Request, key: str, what: str) -> None:
    """Raise Problem (401) that names ``what`` unless the request shows the key."""
    shown = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
    if not compare_digest(shown, f"Bearer {key}".encode()):
        raise Problem(
            HTTPStatus.UNAUTHORIZED, f"{what} is missing or wrong: send Authorization: Bearer KEY"
        )


def client_of(sent: Mapping[str, str], said: str | None, keys: Keyring | None) -> str:
    """Return the client of a request, from its headers and the body field ``said``.

    With ``keys``, only the key decides, so that no client can impersonate another. Raises Problem
    for an unknown key and for an invalid name.
    """
    if keys is not None:
        return _owner(authorization_of(sent), keys)
    named = (sent[name] for name in headers.CLIENT_ALIASES if name in sent)
    client = next(named, None)
    if client is None:
        return _hashed_name(said) if said else headers.DEFAULT_CLIENT
    client = client or headers.DEFAULT_CLIENT
    if not is_name(client):
        raise Problem(
            HTTPStatus.BAD_REQUEST,
            f"the name of a client must have 1 to {MAX_LENGTH} printable ASCII characters",
        )
    return client


def authorization_of(sent: Mapping[str, str]) -> str:
    """Return the header ``Authorization``, or the same for a key in Anthropic's header."""
    key = sent.get(headers.API_KEY)
    return sent.get("Authorization", "" if key is None else f"Bearer {key}")


def is_name(client: str) -> bool:
    """Return whether a text is valid as a client's name, which must fit in a header."""
    fits = 0 < len(client) <= MAX_LENGTH and client.isascii() and client.isprintable()
    return fits and client not in (headers.OTHERS, headers.HEALTH)


def _hashed_name(said: str) -> str:
    """Return the body's name, or a hash of it if it is in another script or too long.

    The hash is permanent and equal in all routers. Raises Problem for a text that is far too long.
    """
    if is_name(said):
        return said
    if len(said) > MAX_BODY_LENGTH:
        raise Problem(
            HTTPStatus.BAD_REQUEST,
            f"the field that names the client must have at most {MAX_BODY_LENGTH} characters",
        )
    return HASHED + blake2b(said.encode("utf-8"), digest_size=HASH_BYTES).hexdigest()


def _owner(authorization: str, keys: Keyring) -> str:
    scheme, _, key = authorization.partition(" ")
    client = keys.get(key.strip()) if scheme.lower() == "bearer" else None
    if client is None:
        said = f"unknown API key: send Authorization: Bearer KEY, or {headers.API_KEY}: KEY"
        raise Problem(HTTPStatus.UNAUTHORIZED, said)
    return client


def check_single(http: web.Request) -> None:
    """Raise Problem (400) for a request that has a deciding header twice."""
    for name in SINGLE:
        if len(http.headers.getall(name, ())) > 1:
            raise bad_request(f"the header {name} is given twice: send it once")


def check_host(http: web.Request, allowed: Collection[str], *, addresses: bool) -> None:
    """Raise Problem (403) for a request that a page of another site may have sent.

    ``allowed`` are the names of this server in lower case; with ``addresses`` any IP address is
    one, too, which no page can claim. Every browser sends a ``Host``, so a request without one is
    not a page's.
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
