"""Freed memory: returns the memory of large bodies to the system.

A body comes in thousands of pieces. Once they are freed, glibc keeps their room where anything
small lies above it, so that the router's size would say nothing of what it holds.
"""

from __future__ import annotations

import asyncio
import ctypes

EVERY_S = 30.0


async def give_back_freed_memory(every_s: float = EVERY_S) -> None:
    """Return free memory to the system repeatedly until cancelled; does nothing without glibc."""
    while give_back():
        await asyncio.sleep(every_s)


def give_back() -> bool:
    """Return free memory to the system; return whether that was possible (10 ms for 100 MB)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True
