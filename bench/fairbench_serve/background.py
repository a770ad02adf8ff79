"""Background tasks of the router, and the return of freed memory to the operating system."""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

log = logging.getLogger(__name__)

Work: TypeAlias = Coroutine[Any, Any, None]
# seconds between returns of freed memory to the operating system
GIVE_BACK_S = 30.0
# minimum size in bytes of a buffer that gets its own memory map; asyncio reads into 256 KiB buffers
LARGE_BYTES = 2**17
# code of the parameter M_MMAP_THRESHOLD in the C header malloc.h
M_MMAP_THRESHOLD = -3


@asynccontextmanager
async def background(work: Iterable[Work]) -> AsyncIterator[None]:
    """Run background tasks while the ``with`` block runs, and log a task that fails."""
    tasks = [_begun(one) for one in work]
    try:
        yield
    finally:
        await _cancel_all(tasks)


class WorkerTasks:
    """The background tasks of each worker, which run until the worker is removed."""

    def __init__(self) -> None:
        self._tasks: dict[int, list[asyncio.Task[None]]] = {}

    def start_task(self, worker: int, work: Work) -> None:
        self._tasks.setdefault(worker, []).append(_begun(work))

    def stop_tasks(self, worker: int) -> None:
        """Cancel the background tasks of a worker without waiting for their end."""
        for task in self._tasks.pop(worker, ()):
            task.cancel()

    async def aclose(self) -> None:
        await _cancel_all([task for tasks in self._tasks.values() for task in tasks])


def _begun(work: Work) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    task.add_done_callback(_complain)
    return task


async def _cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a task of the router has ended", exc_info=error)


def keep_large_buffers_apart() -> bool:
    """Put each buffer of ``LARGE_BYTES`` or more into a memory map of its own, if possible.

    By default, the C library raises the minimum size of separately mapped buffers (up to 32 MiB)
    when a large buffer is freed. Large buffers allocated later would then lie between small
    long-lived objects in the heap. Freed large buffers would leave holes, so the heap would grow.
    Returns whether the C library lets the router fix the minimum size of separately mapped buffers.
    """
    return _called("mallopt", M_MMAP_THRESHOLD, LARGE_BYTES)


async def give_back_freed_memory() -> None:
    """Return freed memory to the operating system periodically, if the C library is glibc."""
    while return_freed_memory():
        await asyncio.sleep(GIVE_BACK_S)


def return_freed_memory() -> bool:
    """Return freed memory to the operating system; this takes about 10 ms per 100 MB.

    The result is False if the C library is not glibc.
    """
    return _called("malloc_trim", 0)


def _called(name: str, *arguments: int) -> bool:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is None:
        return False
    function(*arguments)
    return True
