"""Bodies of requests: compressed ones are decoded piece by piece, and long ones are limited.

The HTTP library would refuse some encodings in its own words and pass others on undecoded.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http import HTTPStatus

from aiohttp import web

from fairbench.live.connections import most_connections
from fairbench.live.json_errors import Problem, bad_request, too_many

PLAIN = ("", "identity")
# The window bits for zlib: a gzip header, or a zlib header for standard "deflate".
WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
RAW_DEFLATE = -zlib.MAX_WBITS  # raw "deflate", as some clients send it
ZLIB_METHOD, METHOD_BITS = 8, 0x0F
PIECE_BYTES = 2**20
# A file of 64 MiB that is compressed in blocks of 64 KiB has half as many. Each takes microseconds.
MOST_MEMBERS = 2048
BODY_S = 120.0  # seconds within which a body must be complete
ARRIVING_BYTES = 2**15  # memory of the connection, the task and the buffer of an arriving body
SHARE = 4  # divisor of the machine's memory for the default


class Decoder:
    """A decoder of one body. Raises Problem (415) for an unknown encoding."""

    def __init__(self, http: web.Request) -> None:
        self._encoding = _encoding(http)
        self._inner: zlib._Decompress | None = None
        self._members = 0
        self._piece = b""

    async def parts(self, piece: bytes) -> AsyncIterator[bytes]:
        """Yield a decoded piece in parts; compressed ones are decoded in a thread.

        Raises Problem (400) for another encoding.
        """
        if self._encoding in PLAIN:
            yield piece
            return
        self._piece = piece
        while part := await asyncio.to_thread(self._next):
            yield part

    def _next(self) -> bytes:
        """Return at most ``PIECE_BYTES`` more, or nothing if the piece has no more."""
        try:
            while True:
                if self._inner is None or self._inner.eof:
                    if not self._piece:
                        return b""
                    self._inner = self._new_member()
                part = self._inner.decompress(self._piece, PIECE_BYTES)
                self._piece = self._inner.unconsumed_tail or self._inner.unused_data
                if part or not self._piece:
                    return part
        except zlib.error:
            raise _broken() from None

    def end(self) -> None:
        """Raise Problem (400) for a body that ends too early."""
        if self._inner is not None and not self._inner.eof:
            raise _broken()

    def _new_member(self) -> zlib._Decompress:
        """Return the decoder of the next member: a gzip file may have several."""
        self._members += 1
        if self._members > MOST_MEMBERS:
            raise bad_request(f"the body has more than {MOST_MEMBERS} compressed members")
        raw = self._encoding == "deflate" and self._piece[0] & METHOD_BITS != ZLIB_METHOD
        return zlib.decompressobj(RAW_DEFLATE if raw else WINDOWS[self._encoding])


async def read_body(http: web.Request, most: int, lease: BodyLease) -> bytes:
    """Return the decoded body. Raises Problem, also if the body is late.

    The body may have ``most`` bytes, both as sent and decoded.
    """
    body, decoder, received = bytearray(), Decoder(http), 0
    _check_size(http.content_length or 0, most)
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in http.content.iter_any():
                received += len(piece)
                _check_size(received, most)
                async for part in decoder.parts(piece):
                    body += part
                    _check_size(len(body), most)
                    lease.grow(len(body))
    except TimeoutError:
        raise Problem(
            HTTPStatus.REQUEST_TIMEOUT, f"the body did not arrive within {BODY_S:g} s"
        ) from None
    except web.RequestPayloadError:
        raise bad_request("the length of the body does not match its headers") from None
    decoder.end()
    lease.arrived()
    return bytes(body)


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {most} bytes")


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


class _Shares:
    """A limit of ``most`` units. A client may hold at most as many as remain free.

    One client alone gets half of the units; the next client then gets half of the rest.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._had: Counter[str] = Counter()
        self._all = 0

    def would_have(self, client: str, more: int) -> tuple[int, bool]:
        """Return the number that the client would hold, and whether the limit allows it."""
        own = self._had[client] + more
        return own, own <= self._most - self._all - more

    def add(self, client: str, more: int) -> None:
        self._all += more
        self._had[client] += more
        if not self._had[client]:
            del self._had[client]


class BodyMemory:
    """A limit of ``most`` bytes on all bodies, which no single client can exhaust.

    A body counts from its first byte until its request ends. Bodies that are still arriving are
    limited in number, too, because each of them occupies a connection.
    """

    def __init__(self, most: int) -> None:
        self._bytes = _Shares(most)
        self._arriving = _Shares(max(2, min(most_connections(), most // ARRIVING_BYTES)))

    @contextmanager
    def lease(self, client: str) -> Iterator[BodyLease]:
        """Lease memory for one body until the block ends. Raises Problem (429) if none is left."""
        number, fits = self._arriving.would_have(client, 1)
        if not fits:
            raise too_many(f"{number} bodies of this client are incomplete; send fewer at a time")
        self._arriving.add(client, 1)
        lease = BodyLease(self._bytes, self._arriving, client)
        try:
            yield lease
        finally:
            lease.arrived()
            self._bytes.add(client, -lease.taken)


class BodyLease:
    """The memory of one body."""

    def __init__(self, memory: _Shares, arriving: _Shares, client: str) -> None:
        self._memory, self._arriving = memory, arriving
        self._client = client
        self._arrives = True
        self.taken = 0

    def grow(self, size: int) -> None:
        """Grow to the body's present size. Raises Problem (429) without room for more."""
        own, fits = self._memory.would_have(self._client, size - self.taken)
        if not fits:
            raise too_many(
                f"the bodies of this client would take {max(own >> 20, 1)} MiB of memory, "
                "more than the limit allows; send fewer at a time"
            )
        self._memory.add(self._client, size - self.taken)
        self.taken = size

    def arrived(self) -> None:
        """Record that the body is complete or refused."""
        if self._arrives:
            self._arriving.add(self._client, -1)
        self._arrives = False
