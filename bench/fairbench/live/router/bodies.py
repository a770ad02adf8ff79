"""Bodies of requests: compressed ones are decoded piece by piece, and long ones are limited.

The HTTP library would refuse some encodings in its own words and pass others on undecoded.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from aiohttp import web

from fairbench.live.http_server import LONG_BODY_BYTES
from fairbench.live.json_errors import Problem, bad_request, too_many

PLAIN = ("", "identity")
# The window bits for zlib: a gzip header, or a zlib header for standard "deflate".
WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
RAW_DEFLATE = -zlib.MAX_WBITS  # raw "deflate", as some clients send it
ZLIB_METHOD, METHOD_BITS = 8, 0x0F
PIECE_BYTES = 2**20
SHARE = 4  # divisor of the machine's memory for the default


class Decoder:
    """A decoder of one body. Raises Problem (415) for an unknown encoding."""

    def __init__(self, http: web.Request) -> None:
        self._encoding = _encoding(http)
        self._inner: zlib._Decompress | None = None

    def feed(self, piece: bytes, most: int) -> bytes:
        """Return the decoded piece, or a part of it that exceeds ``most`` bytes.

        Raises Problem (400) for another encoding.
        """
        if self._encoding in PLAIN or not piece:
            return piece
        if self._inner is None:
            self._inner = zlib.decompressobj(self._window(piece))
        decoded = bytearray()
        try:
            while len(decoded) <= most:
                if self._inner.eof:  # a gzip file may have several members
                    self._inner = zlib.decompressobj(self._window(piece))
                part = self._inner.decompress(piece, PIECE_BYTES)
                decoded += part
                piece = self._inner.unconsumed_tail or self._inner.unused_data
                if not piece and (self._inner.eof or len(part) < PIECE_BYTES):
                    break
        except zlib.error:
            raise _broken() from None
        return bytes(decoded)

    def end(self) -> None:
        """Raise Problem (400) for a body that ends too early."""
        if self._inner is not None and not self._inner.eof:
            raise _broken()

    def _window(self, piece: bytes) -> int:
        raw = self._encoding == "deflate" and piece[0] & METHOD_BITS != ZLIB_METHOD
        return RAW_DEFLATE if raw else WINDOWS[self._encoding]


def check_plain(http: web.Request) -> None:
    """Raise Problem (415) for an encoded body."""
    if _named(http) not in PLAIN:
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "an encoded body is not supported here: send the body without Content-Encoding",
        )


def _named(http: web.Request) -> str:
    return ",".join(http.headers.getall("Content-Encoding", ())).strip().lower()


def _encoding(http: web.Request) -> str:
    encoding = _named(http)
    if encoding not in PLAIN and encoding not in WINDOWS:
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Encoding: {encoding[:40]!r} is not supported: choose from gzip, "
            "deflate, identity",
        )
    return encoding


def _broken() -> Problem:
    return bad_request("the encoding of the body does not match its headers")


def usual_bytes() -> int:
    """Return a quarter of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // SHARE


class BodyMemory:
    """A limit of ``most`` bytes on long bodies, which no single client can exhaust.

    A client may hold at most as much memory as remains free: half of the total if alone; the next
    client then gets half of the rest. Short bodies are neither refused nor counted here, since the
    limit on requests bounds them.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._had: Counter[str] = Counter()
        self._all = 0

    @contextmanager
    def lease(self, client: str) -> Iterator[BodyLease]:
        """Lease memory for one body until the block ends."""
        lease = BodyLease(self, client)
        try:
            yield lease
        finally:
            self._all -= lease.taken
            self._had[client] -= lease.taken
            if not self._had[client]:
                del self._had[client]

    def take(self, client: str, more: int) -> None:
        """Take ``more`` bytes for this client. Raises Problem (429) if they are too many."""
        own = self._had[client] + more
        if own > self._most - self._all - more:
            raise too_many(
                f"the long bodies of this client would take {own >> 20} MiB of memory, "
                "more than the limit allows; send fewer at a time"
            )
        self._had[client] = own
        self._all += more


class BodyLease:
    """The memory of one body."""

    def __init__(self, memory: BodyMemory, client: str) -> None:
        self._memory = memory
        self._client = client
        self.taken = 0

    def grow(self, size: int) -> None:
        """Grow to the body's present size. Raises Problem (429) without room for more."""
        if size > LONG_BODY_BYTES:
            self._memory.take(self._client, size - self.taken)
            self.taken = size
