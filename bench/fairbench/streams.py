"""Named streams of random numbers; a draw from one stream does not change other streams."""

from __future__ import annotations

import random


def stream(seed: int, name: str) -> random.Random:
    """Return the stream ``name`` of random numbers for ``seed``."""
    return random.Random(f"{seed}/{name}")
