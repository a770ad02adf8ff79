"""Sets of workers as the bits of an integer, so that a thousand workers are compared at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def as_bits(workers: Iterable[int]) -> int:
    """Return the set of these workers, as bits."""
    bits = 0
    for worker in workers:
        bits |= 1 << worker
    return bits


def lowest(bits: int) -> int:
    """Return the first worker of a set. Precondition: the set is not empty."""
    return (bits & -bits).bit_length() - 1


def members(bits: int) -> Iterator[int]:
    """Yield the workers of a set, in ascending order."""
    while bits:
        worker = lowest(bits)
        yield worker
        bits ^= 1 << worker
