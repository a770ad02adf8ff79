"""Named streams of random numbers: draws from one stream do not change draws from other streams."""

from __future__ import annotations

import random


def stream(seed: int, name: str) -> random.Random:
    """Return the stream ``name`` of random numbers for ``seed``."""
    return random.Random(f"{seed}/{name}")
