"""Background tasks beside the requests, such as the return of freed memory."""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

log = logging.getLogger(__name__)

Work: TypeAlias = Coroutine[Any, Any, None]
GIVE_BACK_S = 30.0  # seconds between two returns of free memory to the system
LARGE_BYTES = 2**17  # less than the 256 KiB that asyncio allocates for each read
M_MMAP_THRESHOLD = -3  # as in malloc.h


@asynccontextmanager
async def background(work: Iterable[Work]) -> AsyncIterator[None]:
    """Run tasks until the block ends. No task should end before the block."""
    tasks = [_begun(one) for one in work]
    try:
        yield
    finally:
        await _ended(tasks)


class WorkerTasks:
    """Tasks by the worker that they follow. No task is meant to end by itself."""

    def __init__(self) -> None:
        self._tasks: dict[int, list[asyncio.Task[None]]] = {}

    def start(self, worker: int, work: Work) -> None:
        self._tasks.setdefault(worker, []).append(_begun(work))

    def stop(self, worker: int) -> None:
        """End the tasks of this worker soon."""
        for task in self._tasks.pop(worker, ()):
            task.cancel()

    async def aclose(self) -> None:
        await _ended([task for tasks in self._tasks.values() for task in tasks])


def _begun(work: Work) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    task.add_done_callback(_complain)
    return task


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a task of the router has ended", exc_info=error)


def keep_large_buffers_apart() -> bool:
    """Map each buffer of ``LARGE_BYTES`` or more separately; return whether that is possible.

    The C library does so at first, but raises its limit, up to 32 MiB, when the first large buffer
    is freed. Later buffers, for long bodies and for each read of a socket, then lie in the heap
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
    function = getattr(ctypes.CDLL(None), name, None)
    if function is None:
        return False
    function(*arguments)
    return True
