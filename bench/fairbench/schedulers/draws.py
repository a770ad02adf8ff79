"""Pseudo-random numbers that are equal in every run, for policies that choose at random."""

from __future__ import annotations

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def draw(number: int, stream: int = 0) -> float:
    """Return a uniform number in [0, 1): SplitMix64 of a request's id in one of many streams."""
    mixed = (number * _GOLDEN + stream * 0xD1B54A32D192ED03 + _GOLDEN) & _MASK
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _MASK
    return ((mixed ^ mixed >> 31) >> 11) / 2**53
