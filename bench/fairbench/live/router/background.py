"""Tasks that run beside the requests, for the life of the router or of a worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

Work: TypeAlias = Coroutine[Any, Any, None]

log = logging.getLogger(__name__)


@asynccontextmanager
async def background(work: Iterable[Work]) -> AsyncIterator[None]:
    """Run tasks until the block ends. No task should end earlier."""
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
        """Start a task for this worker."""
        self._tasks.setdefault(worker, []).append(_begun(work))

    def stop(self, worker: int) -> None:
        """End the tasks of this worker soon."""
        for task in self._tasks.pop(worker, ()):
            task.cancel()

    async def aclose(self) -> None:
        """End all."""
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
