"""Test compressed bodies, in known and unknown encodings, and slow ones."""

import asyncio
import gzip
import json
import os
import zlib
from collections import Counter
from threading import get_ident

import pytest
from aiohttp.test_utils import make_mocked_request

from fairbench_serve import bodies
from fairbench_serve.bodies import Decoder
from tests.serve.live_router import GENERATE, PATHS, cluster
from tests.serve.test_live_router_admin import administered

BODY = json.dumps(PATHS[GENERATE]).encode()
RAW = zlib.compressobj(wbits=-15)
KNOWN = {
    "identity": BODY,
    "gzip": gzip.compress(BODY, mtime=0),
    # gzip data in two members
    "GZIP": gzip.compress(BODY[:10], mtime=0) + gzip.compress(BODY[10:], mtime=0),
    "x-gzip": gzip.compress(BODY, mtime=0),
    "deflate": zlib.compress(BODY),
    " deflate ": RAW.compress(BODY) + RAW.flush(),
}
UNKNOWN = ["br", "zstd", "compress", "gzip, gzip", "nonsense", "a" * 1000]
BROKEN = [
    ("gzip", gzip.compress(BODY, mtime=0)[:-4]),
    ("gzip", gzip.compress(BODY, mtime=0)[:12]),
    ("gzip", gzip.compress(BODY, mtime=0) + b"junk"),
    ("gzip", BODY),
    ("deflate", zlib.compress(BODY)[:-1]),
    ("deflate", b"\x78"),
]


def answered(encoding, data, **router):
    """Return the status, any error message, and the number of requests that reached the worker."""

    async def run():
        async with cluster(1, router=router) as (under_test, (worker,)):
            sent = {"Content-Encoding": encoding}
            url = under_test.url + GENERATE
            async with under_test.session.post(url, data=data, headers=sent) as answer:
                told = json.loads(await answer.read())
            return answer.status, told.get("error", {}).get("message"), len(worker.seen)

    return asyncio.run(run())


@pytest.mark.parametrize("encoding", KNOWN)
def test_known_encodings_are_decoded(encoding):
    assert answered(encoding, KNOWN[encoding]) == (200, None, 1)


@pytest.mark.parametrize("encoding", UNKNOWN)
def test_unknown_encodings_are_415_in_json(encoding):
    status, message, reached = answered(encoding, BODY)
    assert (status, reached) == (415, 0)
    assert "is not supported: choose from gzip, deflate, identity" in message


@pytest.mark.parametrize(("encoding", "data"), BROKEN)
def test_a_truncated_or_invalid_body_is_a_400(encoding, data):
    assert answered(encoding, data)[::2] == (400, 0)


def test_a_compression_bomb_is_decoded_only_to_the_size_limit():
    """The body decodes to 64 MiB of blanks, sent in 64 KiB."""
    packer = zlib.compressobj(wbits=31)
    bomb = b"".join(packer.compress(b" " * 2**20) for _ in range(64)) + packer.flush()
    assert answered("gzip", bomb, max_body_bytes=2**21)[::2] == (413, 0)


@pytest.mark.parametrize("words", [2**18, 2**18 + 1, 300_000])
@pytest.mark.parametrize("piece", [1000, 2**30])
def test_a_long_body_is_decoded_unchanged(words, piece):
    """The body is longer than a decoding step and compresses well, so undecoded data is kept."""
    body = b"word " * words
    packed = gzip.compress(body)
    decoder = Decoder(make_mocked_request("POST", "/", {"Content-Encoding": "gzip"}))
    pieces = [packed[at : at + piece] for at in range(0, len(packed), piece)]

    async def decoded():
        return b"".join([part for one in pieces async for part in decoder.decompressed(one)])

    assert asyncio.run(decoded()) == body
    decoder.check_end()


EMPTY = gzip.compress(b"", mtime=0)
MEMBERS = {
    "empty": (EMPTY * 4_000, 400),
    "empty behind a body": (gzip.compress(BODY) + EMPTY * 4_000, 400),
    "of one byte": (gzip.compress(b" ", mtime=0) * 4_000, 400),
    "alternating": ((EMPTY + gzip.compress(b" ", mtime=0)) * 2_000, 400),
    "as many as a long file has": (EMPTY * 1_000 + gzip.compress(BODY) + EMPTY * 1_000, 200),
}


@pytest.mark.parametrize("kind", MEMBERS)
def test_members_are_limited_and_decoded_beside_the_event_loop(kind, monkeypatch):
    data, status = MEMBERS[kind]
    threads, new = Counter(), zlib.decompressobj

    def counted(*window):
        threads[get_ident()] += 1
        return new(*window)

    monkeypatch.setattr(bodies.zlib, "decompressobj", counted)
    assert answered("gzip", data)[0] == status
    assert threads.total() <= bodies.MOST_MEMBERS
    assert get_ident() not in threads


@pytest.mark.parametrize("encoding", ["deflate", " deflate "])
def test_members_of_deflate_are_limited_too(encoding):
    window = zlib.MAX_WBITS if encoding == "deflate" else -zlib.MAX_WBITS
    packer = zlib.compressobj(wbits=window)
    assert answered("deflate", packer.flush() * 4_000)[0] == 400


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(os.urandom(2**17), mtime=0),
        gzip.compress(BODY, 0, mtime=0) + EMPTY * 2_000 + gzip.compress(os.urandom(2**17), mtime=0),
        b"\x1f\x8b\x08\x10" + bytes(6) + b"c" * 2**17,  # the comment of a header is not decoded
    ],
)
def test_a_compressed_body_may_not_be_longer_than_a_plain_one(data):
    status, _, reached = answered("gzip", data, max_body_bytes=2**16)
    assert (status, reached) == (413, 0)


def test_the_admin_port_refuses_encodings():
    async def run():
        async with cluster(1) as (under_test, _), administered(under_test) as admin:
            sent = {"Content-Encoding": "br", "Content-Type": "application/json"}
            return await admin.ask("POST", data=b"{}", headers=sent)

    status, told = asyncio.run(run())
    assert status == 415
    assert (
        "an encoded body is not supported here: send the body without Content-Encoding"
        in told["error"]["message"]
    )


DRIPS = {
    "plain": (b"", b" ", {}),
    "announced": (b"", b" ", {"Content-Length": "1000000"}),
    "compressed": (gzip.compress(BODY, mtime=0)[:15], b"", {"Content-Encoding": "gzip"}),
    # a comment of the gzip header that has no end
    "compressed comment": (b"\x1f\x8b\x08\x10" + bytes(6), b"c", {"Content-Encoding": "gzip"}),
}


@pytest.mark.parametrize("kind", DRIPS)
def test_a_body_that_arrives_too_slowly_is_refused(kind, monkeypatch):
    monkeypatch.setattr(bodies, "BODY_S", 0.2)
    start, drop, sent = DRIPS[kind]

    async def drip():
        yield start
        while True:
            yield drop
            await asyncio.sleep(0.02)

    async def run():
        async with (
            cluster(1) as (under_test, (worker,)),
            under_test.session.post(under_test.url + GENERATE, data=drip(), headers=sent) as answer,
        ):
            return answer.status, worker.seen

    assert asyncio.run(run()) == (408, [])
