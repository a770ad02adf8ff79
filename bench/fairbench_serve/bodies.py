"""Request bodies: decompression piece by piece, and limits on size, time and memory.

The router decompresses bodies itself. The HTTP library aiohttp would answer some encodings with an
error in its own format, and pass bodies with other encodings on in compressed form.
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

from fairbench_load.http_server import Problem, bad_request, most_connections, too_many

# values of the header Content-Encoding that mean no compression
PLAIN = ("", "identity")
# zlib's parameter ``wbits`` for a gzip header, and for a zlib header ("deflate")
WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
# zlib's parameter ``wbits`` for "deflate" without a zlib header
RAW_DEFLATE = -zlib.MAX_WBITS
ZLIB_METHOD, METHOD_BITS = 8, 0x0F
# maximum size in bytes of each piece in which a body is decompressed
PIECE_BYTES = 2**20
# maximum number of compressed members of a gzip body; 64 MiB in blocks of 64 KiB are 1,024 members
MOST_MEMBERS = 2048
BODY_S = 120.0  # seconds within which a request body must arrive completely
# bytes of memory for the connection, task and buffer of an arriving body
ARRIVING_BYTES = 2**15
# All request bodies together may use 1 / SHARE of the machine's memory by default.
SHARE = 4


class Decoder:
    """A decompressor for the body of one request.

    Raises Problem (HTTP status 415) if the encoding is not supported.
    """

    def __init__(self, http: web.Request) -> None:
        self._encoding = _encoding(http)
        self._inner: zlib._Decompress | None = None
        self._members = 0
        self._piece = b""

    async def decompressed(self, piece: bytes) -> AsyncIterator[bytes]:
        """Decompress a piece of the body in a thread, and yield the decompressed parts.

        Raises Problem (HTTP status 400) if the data is not compressed as the HTTP header states.
        """
        if self._encoding in PLAIN:
            yield piece
            return
        self._piece = piece
        while part := await asyncio.to_thread(self._next_part):
            yield part

    def _next_part(self) -> bytes:
        """Return at most ``PIECE_BYTES`` decompressed bytes, or b"" if no input is left."""
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

    def check_end(self) -> None:
        """Raise Problem (HTTP status 400) if the compressed body ends too early."""
        if self._inner is not None and not self._inner.eof:
            raise _broken()

    def _new_member(self) -> zlib._Decompress:
        self._members += 1
        if self._members > MOST_MEMBERS:
            raise bad_request(f"the body has more than {MOST_MEMBERS} compressed streams")
        raw = self._encoding == "deflate" and self._piece[0] & METHOD_BITS != ZLIB_METHOD
        return zlib.decompressobj(RAW_DEFLATE if raw else WINDOWS[self._encoding])


async def read_body(http: web.Request, most: int, lease: BodyLease) -> bytes:
    """Return the decompressed body of a request.

    ``most`` limits the bytes of the body both before and after decompression. Raises Problem if the
    body is invalid, too large or late.
    """
    body, decoder, received = bytearray(), Decoder(http), 0
    _check_size(http.content_length or 0, most)
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in http.content.iter_any():
                received += len(piece)
                _check_size(received, most)
                async for part in decoder.decompressed(piece):
                    body += part
                    _check_size(len(body), most)
                    lease.grow_to(len(body))
    except TimeoutError:
        raise Problem(
            HTTPStatus.REQUEST_TIMEOUT, f"the body did not arrive within {BODY_S:g} s"
        ) from None
    except web.RequestPayloadError:
        raise bad_request("the length of the body does not match its headers") from None
    decoder.check_end()
    lease.arrived()
    return bytes(body)


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {most} bytes")


def check_plain(http: web.Request) -> None:
    """Raise Problem (HTTP status 415) if the body is compressed."""
    if _encoding_name(http) not in PLAIN:
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "an encoded body is not supported here: send the body without Content-Encoding",
        )


def _encoding_name(http: web.Request) -> str:
    return ",".join(http.headers.getall("Content-Encoding", ())).strip().lower()


def _encoding(http: web.Request) -> str:
    encoding = _encoding_name(http)
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
    """Return the default memory limit for all request bodies, a quarter of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // SHARE


class _Shares:
    """A limit of ``most`` units (bytes or bodies) that clients share.

    A client may use at most as many bytes or bodies as remain free. If each client takes as much as
    possible, the first client gets half of the limit, and the second client gets a quarter of the
    limit.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._had: Counter[str] = Counter()
        self._all = 0

    def would_have(self, client: str, more: int) -> tuple[int, bool]:
        """Return a client's total including ``more``, and whether the total is allowed.

        The totals count either bytes or bodies.
        """
        own = self._had[client] + more
        return own, own <= self._most - self._all - more

    def take_units(self, client: str, more: int) -> None:
        self._all += more
        self._had[client] += more
        if not self._had[client]:
            del self._had[client]


class BodyMemory:
    """A limit on the memory of all request bodies; no single client can use up this memory.

    All bodies together may use at most ``most`` bytes. The bytes of a body count from its first
    byte until its request ends. A second limit applies to the number of bodies that are still
    arriving, because each arriving body occupies a connection.
    """

    def __init__(self, most: int) -> None:
        self._bytes = _Shares(most)
        self._arriving = _Shares(max(2, min(most_connections(), most // ARRIVING_BYTES)))

    @contextmanager
    def lease(self, client: str) -> Iterator[BodyLease]:
        """Reserve memory for a body while the ``with`` block runs.

        Raises Problem (HTTP status 429) if the client sends too many bodies at the same time.
        """
        number, fits = self._arriving.would_have(client, 1)
        if not fits:
            raise too_many(
                f"this client would upload {number} request bodies at the same time, more than "
                "the current limit; send fewer at the same time"
            )
        self._arriving.take_units(client, 1)
        lease = BodyLease(self._bytes, self._arriving, client)
        try:
            yield lease
        finally:
            lease.arrived()
            self._bytes.take_units(client, -lease.taken)


class BodyLease:
    """The memory that is reserved for the body of one request."""

    def __init__(self, memory: _Shares, arriving: _Shares, client: str) -> None:
        self._memory, self._arriving = memory, arriving
        self._client = client
        self._arrives = True
        self.taken = 0

    def grow_to(self, size: int) -> None:
        """Reserve memory for a body of ``size`` bytes in total.

        Raises Problem (HTTP status 429) if the memory limit is exceeded.
        """
        own, fits = self._memory.would_have(self._client, size - self.taken)
        if not fits:
            raise too_many(
                f"this client's request bodies would take {max(own >> 20, 1)} MiB of memory, "
                "more than the limit allows; send fewer requests at a time"
            )
        self._memory.take_units(self._client, size - self.taken)
        self.taken = size

    def arrived(self) -> None:
        """Record that the body of a request has arrived completely or was refused."""
        if self._arrives:
            self._arriving.take_units(self._client, -1)
        self._arrives = False
