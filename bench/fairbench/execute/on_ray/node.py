"""The code that runs on nodes: tasks, and an actor that tells them to stop."""

from __future__ import annotations

import asyncio
import pickle
import platform
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from fairbench.execute.executor import Saving, attempt
from fairbench.execute.interruption import Interruption
from fairbench.execute.on_ray.luggage import Luggage


class Outcome(NamedTuple):
    """A task's return value or ``Failure``, and the files that it saved, by relative path."""

    result: Any
    files: Mapping[str, bytes]


class Desk:
    """An actor that knows which tasks have started, and tells them when to stop."""

    def __init__(self) -> None:
        self._begun: set[int] = set()
        self._stop = asyncio.Event()

    async def begin(self, index: int) -> bool:
        """Return whether a task may still start, and record that it does."""
        if not self._stop.is_set():
            self._begun.add(index)
        return index in self._begun

    async def lost(self, index: int) -> None:
        """Record that a task did not start, because its node is gone."""
        self._begun.discard(index)

    async def stopped(self) -> None:
        """Wait until all tasks should stop."""
        await self._stop.wait()

    async def stop(self) -> set[int]:
        """Tell all tasks to stop; return the tasks that have started."""
        self._stop.set()
        return self._begun


def work(luggage: bytes, pickled: bytes, index: int, desk: Any) -> bytes:
    """Do one task; return its pickled ``Outcome``, or nothing if it may not start.

    ``desk`` is Ray's handle of a ``Desk``. Raises UsageError if no task may run on this node.
    """
    unpacked: Luggage = pickle.loads(luggage)
    unpacked.check(platform.node())
    task = pickle.loads(pickled)
    # No `ray.get`: whoever waits in it lends its processor to another task.
    if not desk.begin.remote(index).future().result():
        return b""
    interrupted = Interruption()
    stopped = desk.stopped.remote()
    stopped.future().add_done_callback(lambda _: _note(interrupted))
    with TemporaryDirectory(prefix="fairbench-") as temporary:
        inside, saved = Path(temporary, "in"), Path(temporary, "out")
        inside.mkdir()
        saved.mkdir()
        if isinstance(task, Saving):
            task = replace(task, folder=saved)
        with unpacked.unpacked(inside):
            result = attempt(task, interrupted)
        paths = [path for path in saved.rglob("*") if path.is_file()]
        files = {path.relative_to(saved).as_posix(): path.read_bytes() for path in paths}
    return pickle.dumps(Outcome(result, files))


def _note(interrupted: Interruption) -> None:
    interrupted.signum = interrupted.signum or signal.SIGTERM
