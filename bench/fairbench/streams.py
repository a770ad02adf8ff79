"""Named streams of random numbers: draws for one purpose never change the draws for another."""

from __future__ import annotations

import random


def stream(seed: int, name: str) -> random.Random:
    """Return the random stream of one purpose, whose seed is a text."""
    return random.Random(f"{seed}/{name}")
