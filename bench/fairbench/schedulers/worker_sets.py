"""Sets of workers as the bits of an integer: a thousand of them are compared at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def as_bits(workers: Iterable[int]) -> int:
    """The set of these workers."""
    bits = 0
    for worker in workers:
        bits |= 1 << worker
    return bits


def lowest(bits: int) -> int:
    """The first worker. Precondition: there is one."""
    return (bits & -bits).bit_length() - 1


def members(bits: int) -> Iterator[int]:
    """The workers of a set, ascending."""
    while bits:
        worker = lowest(bits)
        yield worker
        bits ^= 1 << worker
