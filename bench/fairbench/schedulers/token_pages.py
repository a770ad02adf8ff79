"""Token ids to segments, for routers of real traffic: pages of tokens, each with a chained hash."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from fairbench.core import Prompt, Segment

PAGE_TOKENS = 32
SMALL_PAGES = 64  # after so many pages they are longer, or a long document costs a walk of its own
LONG_PAGE_TOKENS = 512
DIGEST_BYTES = 12  # 96 bits: a chance of 1e-13 for any collision among 100 million pages


def segments_of(token_ids: Sequence[int]) -> Prompt:
    """A prompt of pages (fastest from an ``array("I")``): 64 of 32 tokens, then of 512.

    A page's name is a hash of all tokens up to its end, so prompts share exactly the segments of
    their common whole pages, and equal names mean equal prefixes. A last, shorter page matches
    only the same ending.
    """
    ids = token_ids if isinstance(token_ids, array) else array("I", token_ids)
    data = memoryview(ids).cast("B")
    chain = b""
    segments = []
    for start, end in _pages(len(ids)):
        page = data[start * ids.itemsize : end * ids.itemsize]
        chain = blake2b(page, digest_size=DIGEST_BYTES, key=chain).digest()
        segments.append(Segment(chain.hex(), end - start))
    return tuple(segments)


def _pages(tokens: int) -> Iterator[tuple[int, int]]:
    """Start and end of each page; where a page begins does not depend on the prompt's length."""
    small = min(tokens, SMALL_PAGES * PAGE_TOKENS)
    for start in range(0, small, PAGE_TOKENS):
        yield start, min(start + PAGE_TOKENS, tokens)
    for start in range(small, tokens, LONG_PAGE_TOKENS):
        yield start, min(start + LONG_PAGE_TOKENS, tokens)
