"""Identification of a request's client, and protection against pages of other web sites.

A web page can make its own host name resolve to an address of this machine or network (DNS
rebinding). Under DNS rebinding, the browser takes this server for the page's site, but the header
Host has the page's host name.
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

from fairbench_load import headers
from fairbench_load.http_server import Problem, bad_request
from fairbench_load.processes.addresses import LOOPBACK

# maximum number of characters of a client's name
MAX_LENGTH = 128
# maximum number of characters of a body field that names the client, such as an e-mail address
MAX_BODY_LENGTH = 512
HASHED, HASH_BYTES = "user-", 10
# A session's number is a hash of the session's name with ``SESSION_BYTES`` bytes.
NO_SESSION, SESSION_BYTES = -1, 7
# loopback names that a request's Host header may contain, also if the request uses an SSH tunnel
LOOPBACK_HOSTS = (LOOPBACK, "localhost", "::1")
ANY_HOST = "*"
# headers that a request may contain only once, because proxies disagree on which value counts
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
    *headers.SESSION_ALIASES,
)


class Keyring:
    """API keys, stored as keyed hashes so that the time of a lookup reveals nothing."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._secret = token_bytes(32)
        self._owners = {self._hashed(key): client for key, client in keys.items()}

    def get(self, key: str, /) -> str | None:
        return self._owners.get(self._hashed(key))

    def _hashed(self, key: str) -> bytes:
        return blake2b(key.encode("utf-8", "surrogatepass"), key=self._secret).digest()


def check_bearer(request: web.Request, key: str, what: str) -> None:
    """Raise Problem (HTTP status 401), which names ``what``, unless the bearer key is ``key``."""
    shown = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
    if not compare_digest(shown, f"Bearer {key}".encode()):
        raise Problem(
            HTTPStatus.UNAUTHORIZED, f"{what} is missing or wrong: send Authorization: Bearer KEY"
        )


def client_of(sent: Mapping[str, str], said: str | None, keys: Keyring | None) -> str:
    """Return the client that a request's headers name or, without a name, the body field ``said``.

    With ``keys``, only the API key identifies the client, so that no client can impersonate another
    client. Raises Problem if the key is unknown or the name is invalid.
    """
    if keys is not None:
        scheme, _, key = authorization_of(sent).partition(" ")
        owner = keys.get(key.strip()) if scheme.lower() == "bearer" else None
        if owner is None:
            text = f"unknown API key: send Authorization: Bearer KEY, or {headers.API_KEY}: KEY"
            raise Problem(HTTPStatus.UNAUTHORIZED, text)
        return owner
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


def session_of(sent: Mapping[str, str], said: str | None) -> int:
    """Return the number of a request's session, or ``NO_SESSION``.

    A header contains the session's name; without this header, ``said`` (from the body) is used. A
    client's requests with equal session names belong to the same session. Raises Problem for a name
    that is too long.
    """
    name = next((sent[name] for name in headers.SESSION_ALIASES if sent.get(name)), said)
    if not name:
        return NO_SESSION
    if len(name) > MAX_BODY_LENGTH:
        raise bad_request(f"the name of a session must have at most {MAX_BODY_LENGTH} characters")
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=SESSION_BYTES).digest()
    return 1 + int.from_bytes(digest, "big")


def authorization_of(sent: Mapping[str, str]) -> str:
    """Return the header ``Authorization``, or an equivalent header from Anthropic's API key."""
    key = sent.get(headers.API_KEY)
    return sent.get("Authorization", "" if key is None else f"Bearer {key}")


def is_name(client: str) -> bool:
    """Return whether a text is a valid client name that fits into an HTTP header."""
    fits = 0 < len(client) <= MAX_LENGTH and client.isascii() and client.isprintable()
    return fits and client not in (headers.OTHERS, headers.HEALTH)


def _hashed_name(said: str) -> str:
    """Return the client name in a body field, or the hash of a name that is too long or not ASCII.

    The hash of a name is the same in all routers. Raises Problem for more than ``MAX_BODY_LENGTH``
    characters.
    """
    if is_name(said):
        return said
    if len(said) > MAX_BODY_LENGTH:
        raise Problem(
            HTTPStatus.BAD_REQUEST,
            f"the field that names the client must have at most {MAX_BODY_LENGTH} characters",
        )
    return HASHED + blake2b(said.encode("utf-8"), digest_size=HASH_BYTES).hexdigest()


def check_single(http: web.Request) -> None:
    """Raise Problem (HTTP status 400) if a request repeats a header that is in ``SINGLE``."""
    for name in SINGLE:
        if len(http.headers.getall(name, ())) > 1:
            raise bad_request(f"the header {name} is given twice: send it once")


def check_host(http: web.Request, allowed: Collection[str], *, addresses: bool) -> None:
    """Raise Problem (HTTP status 403) if a page of another web site may have sent the request.

    ``allowed`` holds this server's host names in lower case. With ``addresses``, the host may also
    be any IP address, because DNS rebinding needs a host name. A request without the header
    ``Host`` is accepted, because it comes from no browser.
    """
    said = http.headers.get("Host")
    host = None if said is None else _host_name(f"//{said}")
    if said is not None and not (host in allowed or (addresses and _is_address(host))):
        raise _foreign(f"host {said[:64]!r}")
    origin = http.headers.get("Origin")
    if origin is not None and _host_name(origin) not in (*allowed, host):
        raise _foreign(f"origin {origin[:64]!r}")


def _host_name(url: str) -> str | None:
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
