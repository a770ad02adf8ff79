"""Memory of a router that runs for weeks: the C library gives back what is free."""

from __future__ import annotations

import asyncio
import ctypes

GIVE_BACK_S = 30.0  # between two times that free memory goes back to the system
LARGE_BYTES = 2**17  # less than the 256 KiB that asyncio takes for each read
M_MMAP_THRESHOLD = -3  # of malloc.h


def keep_large_buffers_apart() -> bool:
    """Map buffers of ``LARGE_BYTES`` and more on their own; return whether that is possible.

    The C library begins like that, but the first large buffer that is freed raises its limit, to as
    much as 32 MiB. Later ones, for long bodies and for each read of a socket, then lie in the heap
    among small objects that stay, and leave holes: the heap grows although nothing is kept.
    """
    return _called("mallopt", M_MMAP_THRESHOLD, LARGE_BYTES)


async def give_back_freed_memory() -> None:
    """Return free memory to the system repeatedly until cancelled; does nothing without glibc."""
    while give_back():
        await asyncio.sleep(GIVE_BACK_S)


def give_back() -> bool:
    """Return free memory to the system; return whether that was possible (10 ms for 100 MB)."""
    return _called("malloc_trim", 0)


def _called(name: str, *arguments: int) -> bool:
    """Call a function of the C library; return False if it has none of this name."""
    function = getattr(ctypes.CDLL(None), name, None)
    if function is None:
        return False
    function(*arguments)
    return True
