"""Prompts as pages of token ids, for routers of real traffic; a page is its own name."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from fairbench.core import Prompt, Segment

ID_BYTES = array("I").itemsize
FIRST_PAGE_TOKENS = 8  # a first chat message is often shorter than 32
PAGES_BEFORE_DOUBLING = 32  # pages of one size before the size doubles


def segments_of(token_ids: Sequence[int]) -> Prompt:
    """Return a prompt as pages: of 8 tokens up to 256, then of 16 up to 512, and so on.

    A page's border costs at most a sixteenth of a match, or 7 tokens. Conversion is fastest from an
    ``array("I")``.

    A page's name consists of its tokens (4 bytes each), so it is not suitable for a log. Two
    prompts therefore begin with the same segments exactly as far as they share whole pages; no hash
    is computed and none can collide. A last, shorter page matches only the same ending. To name a
    prefix that ends inside a page, ``truncate`` the prompt of the whole text. Raises OverflowError
    for an id that is negative or has more than 32 bits.
    """
    text = str(_bytes_of(token_ids), "latin-1")  # one character per byte
    pages: list[str] = []
    start, size = 0, FIRST_PAGE_TOKENS * ID_BYTES
    while start < len(text):
        end = min(PAGES_BEFORE_DOUBLING * size, len(text))
        pages += [text[at : at + size] for at in range(start, end, size)]
        start, size = end, 2 * size
    return tuple([Segment(page, len(page) // ID_BYTES) for page in pages])


def narrow(ids: Sequence[int]) -> Sequence[int]:
    """Return token ids of at most 32 bits; SGLang gives the tokens of an image wider ones."""
    try:
        return array("I", ids)
    except OverflowError:
        return array("I", [(one ^ one >> 32) & 0xFFFFFFFF for one in ids])


def _bytes_of(token_ids: Sequence[int]) -> memoryview:
    if isinstance(token_ids, array) and token_ids.typecode == "I":
        return memoryview(token_ids).cast("B")
    return memoryview(array("I", token_ids)).cast("B")
