"""Tasks on Ray: the process that distributes tasks, and the code that runs on the nodes."""

from __future__ import annotations

import asyncio
import pickle
import platform
import signal
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from fairbench.errors import RunFailed
from fairbench.execute.tasks import Failure, Interruption, Saving, attempt
from fairbench_load.sent_files import SentFiles
from fairbench_ray.connection import connected, give_up

POLL_S = 0.2  # seconds between two checks whether the tasks should stop
STOP = "stop"  # message that asks the process to stop all tasks
MOST_LOST = 5  # a task fails after losing this many nodes, because it may crash them


class StartedTasks:
    """A Ray actor that records which tasks have started, and tells tasks when to stop."""

    def __init__(self) -> None:
        self._begun: set[int] = set()
        self._stop = asyncio.Event()

    async def begin(self, index: int) -> bool:
        """Record that a task starts, and return whether it may start."""
        if not self._stop.is_set():
            self._begun.add(index)
        return index in self._begun

    async def lost(self, index: int) -> None:
        """Record that a task's node was lost, so that the task can start again."""
        self._begun.discard(index)

    async def stopped(self) -> None:
        """Wait until ``stop`` asks all tasks to stop."""
        await self._stop.wait()

    async def stop(self) -> set[int]:
        """Ask all tasks to stop. Return the indices of the tasks that have started."""
        self._stop.set()
        return self._begun


def work(sent_files: bytes, pickled: bytes, index: int, started: Any) -> bytes:
    """Run one task; return its pickled outcome and the files that it saved, keyed by path.

    If ``started`` does not let the task start, the function returns empty bytes. ``started`` is the
    Ray handle of the actor ``StartedTasks``. Raises UsageError if the tasks cannot run on this
    node.
    """
    unpacked: SentFiles = pickle.loads(sent_files)
    unpacked.check(platform.node())
    task = pickle.loads(pickled)
    # ``ray.get`` would free this task's CPU core for another task during the wait.
    if not started.begin.remote(index).future().result():
        return b""
    interrupted = Interruption()
    stopped = started.stopped.remote()
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
    return pickle.dumps((result, files))


def _note(interrupted: Interruption) -> None:
    interrupted.signum = interrupted.signum or signal.SIGTERM


class EndedTask(NamedTuple):
    """A message that a task has ended, with its pickled outcome or its failure."""

    number: int
    outcome: bytes | Failure


class Refused(NamedTuple):
    """A message with the reason why a node cannot run the tasks."""

    reason: str


class Over(NamedTuple):
    """A message that all tasks have ended."""


def serve_tasks(pipe: Connection, address: str) -> None:
    """Receive files and numbered tasks from the pipe, and run the tasks until ``STOP``.

    If the parent process ends, all tasks end.
    """
    with connected(pipe, address) as ray:
        if ray is not None:
            _Bridge(ray, pipe, *pipe.recv()).run()
            pipe.send(Over())


class _Bridge:
    def __init__(
        self, ray: Any, pipe: Connection, sent_files: bytes, tasks: Mapping[int, bytes]
    ) -> None:
        self._ray, self._pipe, self._tasks = ray, pipe, tasks
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        actor = ray.remote(StartedTasks).options(
            num_cpus=0, scheduling_strategy=here, max_concurrency=1_000_000
        )
        self._started = actor.remote()
        # Without ``max_retries=0``, Ray would also repeat a task that crashed its process.
        self._work_on = ray.remote(_work_function()).options(num_cpus=1, max_retries=0)
        self._sent_files = ray.put(sent_files)
        self._lost = dict.fromkeys(tasks, 0)
        self._stopped = False
        self._running: dict[Any, int] = {}

    def run(self) -> None:
        for index in self._tasks:
            self._begin(index)
        while self._running:
            done, _ = self._ray.wait(list(self._running), timeout=POLL_S)
            for ref in done:
                self._on_task_end(ref, self._running.pop(ref))
            if not self._stopped and self._pipe.poll():
                self._pipe.recv()
                self._stop()

    def _begin(self, index: int) -> None:
        ref = self._work_on.remote(self._sent_files, self._tasks[index], index, self._started)
        self._running[ref] = index

    def _stop(self) -> None:
        """Cancel the tasks that have not started, and ask all other tasks to stop."""
        self._stopped = True
        begun = self._ray.get(self._started.stop.remote())
        for ref, index in self._running.items():
            if index not in begun:
                self._ray.cancel(ref)

    def _on_task_end(self, ref: Any, index: int) -> None:
        errors = self._ray.exceptions
        try:
            if outcome := self._ray.get(ref):
                self._pipe.send(EndedTask(index, outcome))
        except (errors.NodeDiedError, errors.ObjectLostError) as error:
            self._lose(index, error)
        except errors.TaskCancelledError:
            # ``_stop`` cancelled this task before it started.
            pass
        # A task's own error is part of the task's result, so a RayTaskError means that ``work``
        # itself failed.
        except errors.RayTaskError as error:
            if isinstance(error.cause, errors.RayActorError):
                # The actor StartedTasks runs on this node, so its failure means that the node is
                # failing.
                give_up()
            self._pipe.send(Refused(f"{error.cause}".partition("\n")[0]))
        except errors.WorkerCrashedError:
            self._fail(index, "its process died")
        except errors.RayError as error:
            self._fail(index, f"{type(error).__name__}: {error}".partition("\n")[0])

    def _lose(self, index: int, error: Exception) -> None:
        """Retry a task whose node was lost, or fail the task if it has lost ``MOST_LOST`` nodes."""
        self._lost[index] += 1
        self._started.lost.remote(index)
        if self._stopped:
            return
        if self._lost[index] >= MOST_LOST:
            self._fail(index, f"{MOST_LOST} of its nodes were lost, the last one: {error}")
        else:
            self._begin(index)

    def _fail(self, index: int, reason: str) -> None:
        self._pipe.send(EndedTask(index, Failure(RunFailed(reason.partition("\n")[0]), "")))


def _work_function() -> Any:
    """Return a function that runs a task on a node, or raises an error if the node lacks fairbench.

    Ray pickles the returned function by value, so that a node without fairbench can load it.
    """

    def work(sent_files: bytes, task: bytes, index: int, started: Any) -> bytes:
        import importlib
        import platform

        try:
            node = importlib.import_module("fairbench_ray.tasks")
        except ImportError as error:
            raise RuntimeError(f"node {platform.node()} lacks fairbench: {error}") from None
        outcome: bytes = node.work(sent_files, task, index, started)
        return outcome

    return work
