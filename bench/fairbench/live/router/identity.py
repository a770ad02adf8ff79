"""Identity: whose a request is."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from http import HTTPStatus
from secrets import token_bytes
from typing import Protocol

from fairbench.live import headers
from fairbench.live.router.problem import Problem

MAX_LENGTH = 128
MAX_BODY_LENGTH = 512  # of what a body says, which may be an e-mail address or a sentence
HASHED, HASH_BYTES = "user-", 10


class Owners(Protocol):
    """Whose a key is."""

    def get(self, key: str, /) -> str | None:
        """The client, None if it is nobody's."""
        ...


class Keyring:
    """API keys by a keyed hash: how long a look-up takes says nothing of how near a guess is."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._secret = token_bytes(32)
        self._owners = {self._hashed(key): client for key, client in keys.items()}

    def get(self, key: str, /) -> str | None:
        """The client whose key it is."""
        return self._owners.get(self._hashed(key))

    def _hashed(self, key: str) -> bytes:
        return blake2b(key.encode("utf-8", "surrogatepass"), key=self._secret).digest()


def client_of(sent: Mapping[str, str], said: str | None, keys: Owners | None) -> str:
    """The client of a request with these headers, in whose body this is ``said`` of it.

    With ``keys`` the key alone decides, so that nobody can claim to be another client. Raises
    Problem for an unknown key and for a name that cannot be one.
    """
    if keys is not None:
        return _owner(sent.get("Authorization", ""), keys)
    named = (sent[name] for name in headers.CLIENT_ALIASES if name in sent)
    client = next(named, None)
    if client is None:
        return _hashed_name(said) if said else headers.DEFAULT_CLIENT
    client = client or headers.DEFAULT_CLIENT
    if not is_name(client):
        raise Problem(
            HTTPStatus.BAD_REQUEST,
            f"a client's name has 1 to {MAX_LENGTH} printable ASCII characters",
        )
    return client


def is_name(client: str) -> bool:
    """Whether it can be a client's name, which has to travel in a header."""
    fits = 0 < len(client) <= MAX_LENGTH and client.isascii() and client.isprintable()
    return fits and client not in (headers.OTHERS, headers.HEALTH)


def _hashed_name(said: str) -> str:
    """What a body says, or if it is in another script or too long for a name, its hash.

    The same for every router and for good. Raises Problem if it is far too long.
    """
    if is_name(said):
        return said
    if len(said) > MAX_BODY_LENGTH:
        raise Problem(
            HTTPStatus.BAD_REQUEST, f"whose a request is takes at most {MAX_BODY_LENGTH} characters"
        )
    return HASHED + blake2b(said.encode("utf-8"), digest_size=HASH_BYTES).hexdigest()


def _owner(authorization: str, keys: Owners) -> str:
    scheme, _, key = authorization.partition(" ")
    client = keys.get(key.strip()) if scheme.lower() == "bearer" else None
    if client is None:
        raise Problem(HTTPStatus.UNAUTHORIZED, "unknown API key: send Authorization: Bearer KEY")
    return client
