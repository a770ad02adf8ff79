"""Named streams of random numbers: each purpose has its own, and none shifts another's draws."""

from __future__ import annotations

import random


def stream(seed: int, name: str) -> random.Random:
    """Return the random stream of one purpose, whose seed is a text."""
    return random.Random(f"{seed}/{name}")
