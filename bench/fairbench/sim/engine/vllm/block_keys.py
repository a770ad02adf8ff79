"""Positions in prompts, block by block: the key of a block, and the common part of two prompts."""

from __future__ import annotations

from fairbench.core import Prompt
from fairbench.schedulers.prefix_tree import Place, truncate

# of each segment: its key, the offset in it, and the number of tokens from there
Slice = tuple[str, int, int]
Key = tuple[Slice, ...]  # the tokens of one block


def prefix_of(prompt: Prompt, depth: int) -> Prompt:
    """Return the first ``depth`` tokens of a prompt, without empty segments."""
    return tuple(one for one in truncate(prompt, depth) if one.length)


def next_block(prompt: Prompt, place: Place, tokens: int) -> Key:
    """Return slices of ``tokens`` tokens from position ``place``, which must exist."""
    index, offset = place
    key, length = prompt[index]
    if length - offset >= tokens:  # usually a block lies within one segment
        return ((key, offset, tokens),)
    slices = []
    while tokens:
        key, length = prompt[index]
        taken = min(length - offset, tokens)
        if taken:
            slices.append((key, offset, taken))
        tokens -= taken
        index, offset = index + 1, 0
    return tuple(slices)


def advance(prompt: Prompt, place: Place, tokens: int) -> Place:
    """Return the place ``tokens`` tokens after ``place``, which may be the start of a segment."""
    index, upto = place
    upto += tokens
    while index < len(prompt) and upto >= (length := prompt[index][1]):
        index, upto = index + 1, upto - length
    return index, upto


def common_tokens(one: Prompt, at: Place, other: Prompt, place: Place, most: int) -> int:
    """Return the number of equal tokens from ``at`` in one prompt and ``place`` in the other.

    At most ``most`` are counted, and at least that many tokens must remain in the first prompt.
    """
    (left, start), (right, offset), taken = at, place, 0
    while taken < most and right < len(other):
        key, length = one[left]
        name, size = other[right]
        if start == length:
            left, start = left + 1, 0
        elif offset == size:
            right, offset = right + 1, 0
        elif key != name or start != offset:
            break
        else:
            step = min(length - start, size - offset, most - taken)
            start, offset, taken = start + step, offset + step, taken + step
    return taken
