"""Independent streams of random numbers, each identified by a name and a seed."""

from __future__ import annotations

import random


def stream(seed: int, name: str) -> random.Random:
    """Return the stream of random numbers that ``name`` and ``seed`` identify."""
    return random.Random(f"{seed}/{name}")
