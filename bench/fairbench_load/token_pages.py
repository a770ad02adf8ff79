"""Conversion of real prompts into pages of token ids, which become the prompts' segments."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence

from fairbench.core import Prompt, Segment

ID_BYTES = array("I").itemsize
# The first pages are small, because a first chat message is often shorter than 32 tokens.
FIRST_PAGE_TOKENS = 8
# The page size n doubles after ``PAGES_BEFORE_DOUBLING`` * n tokens of a prompt.
PAGES_BEFORE_DOUBLING = 32


def segments_of(token_ids: Sequence[int]) -> Prompt:
    """Split a prompt's token ids into pages, whose size grows with the length of the prompt.

    Pages have 8 tokens up to token 256 of the prompt, 16 tokens up to token 512, 32 tokens up to
    token 1,024, and so on. A match of two prompts ends at a page boundary, so at most 7 tokens or a
    sixteenth of the matched prefix is lost.

    A page's name contains the page's token ids (4 bytes each), so logged names would reveal
    prompts. Because names are not hashes, different pages never have equal names. If the last page
    of a prompt is incomplete, it matches only an equal last page. To get a prefix that ends inside
    a page, call ``truncate`` on the converted text. Raises OverflowError for an id that is negative
    or has more than 32 bits.
    """
    # ``text`` contains the bytes of all token ids, each byte as a character.
    if not (isinstance(token_ids, array) and token_ids.typecode == "I"):
        token_ids = array("I", token_ids)
    text = str(memoryview(token_ids).cast("B"), "latin-1")
    pages: list[str] = []
    start, size = 0, FIRST_PAGE_TOKENS * ID_BYTES
    while start < len(text):
        end = min(PAGES_BEFORE_DOUBLING * size, len(text))
        pages += [text[at : at + size] for at in range(start, end, size)]
        start, size = end, 2 * size
    return tuple([Segment(page, len(page) // ID_BYTES) for page in pages])


def narrow(ids: Sequence[int]) -> Sequence[int]:
    """Return the token ids reduced to 32 bits, because SGLang's ids of image tokens are wider."""
    try:
        return array("I", ids)
    except OverflowError:
        return array("I", [(one ^ one >> 32) & 0xFFFFFFFF for one in ids])


def prompt_apart(ids: Sequence[int], apart: Hashable) -> Prompt:
    """Convert token ids to a prompt that shares prefixes only with prompts of equal ``apart``."""
    prompt = segments_of(narrow(ids))
    return prompt if apart is None else (Segment(repr(apart), 0), *prompt)
