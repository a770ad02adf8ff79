"""Segments as text, for servers that take no token ids: one common word a token, about."""

from __future__ import annotations

from hashlib import shake_128

from fairbench.core import Segment

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


def words_of(segment: Segment) -> bytes:
    """``length`` words, a space before each; a shorter segment of the key is a prefix."""
    stream = shake_128(segment.key.encode()).digest(segment.length)
    return "".join(f" {WORDS[byte % len(WORDS)]}" for byte in stream).encode()
