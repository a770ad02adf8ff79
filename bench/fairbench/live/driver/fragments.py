"""Segments as token ids or as text, equal in every run and on every machine."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import shake_128

import msgspec
import numpy as np

from fairbench.core import Segment
from fairbench.metrics.records import Ints

ID_BYTES = 4
CACHED_BYTES = 64 * 2**20

# 128 words, each one token (with the space before it) in the usual vocabularies.
_WORDS = """
 time year people way day man thing woman life child world school state family student group
 country problem hand part place case week company system program question work government number
 night point home water room mother area money story fact month lot right study book eye job word
 business issue side kind head house service friend father power hour game line end member law car
 city community name president team minute idea body information back parent face others level
 office door health person art war history party result change morning reason research girl guy
 moment air teacher force education foot boy age policy process music market sense nation plan
 college interest death experience effect use class control care field development role value
 action season player film paper record
"""
WORDS = tuple(_WORDS.split())


def token_ids(segment: Segment, vocab: range) -> Ints:
    """Return the first ``length`` ids of an infinite stream whose seed is the key.

    SHAKE-128 yields such streams, so the ids of a shorter segment are a prefix of a longer one's.
    """
    stream = shake_128(segment.key.encode()).digest(ID_BYTES * segment.length)
    ids: Ints = np.frombuffer(stream, "<u4").astype(np.int64) % len(vocab) + vocab.start
    return ids


class TokenFragments:
    """Converts prompt segments to JSON without brackets, and caches the most recent results.

    A document of 21k tokens is sent repeatedly, and its conversion takes a millisecond.
    """

    def __init__(self, vocab: range, cached_bytes: int = CACHED_BYTES) -> None:
        self._vocab = vocab
        self._room = cached_bytes
        self._kept: OrderedDict[Segment, bytes] = OrderedDict()

    def of(self, segment: Segment) -> bytes:
        """Return a segment's token ids as JSON, such as ``b"17,4,99"`` for three tokens."""
        fragment = self._kept.get(segment)
        if fragment is not None:
            self._kept.move_to_end(segment)
            return fragment
        fragment = fragment_of(token_ids(segment, self._vocab).tolist())
        self._kept[segment] = fragment
        self._room -= len(fragment)
        while self._room < 0:
            self._room += len(self._kept.popitem(last=False)[1])
        return fragment


def fragment_of(ids: list[int]) -> bytes:
    """Return token ids as JSON without brackets."""
    return msgspec.json.encode(ids)[1:-1]


def words_of(segment: Segment) -> bytes:
    """Return ``length`` words, each after a space; equal keys give the same first words."""
    stream = shake_128(segment.key.encode()).digest(segment.length)
    return "".join(f" {WORDS[byte % len(WORDS)]}" for byte in stream).encode()
