"""Tasks side by side in processes that survive each other's crashes and end with their parent."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from threading import Thread
from typing import Any, NamedTuple

from fairbench.errors import FairbenchError, RunFailed
from fairbench.execute.interruption import SIGNALS, Interruption, interruptible

POLL_S = 0.2
# Spawned, so that a process starts clean whatever threads this one has.
SPAWN = get_context("spawn")

Task = Callable[[Interruption], Any]
"""What a process is given to do. It is pickled, asks often whether to stop, and then saves."""


class Failure(NamedTuple):
    """How a task failed: what to raise for it, and the traceback if there was one."""

    error: FairbenchError
    details: str


class _Worker(NamedTuple):
    process: BaseProcess
    pipe: Connection


def run_tasks(
    tasks: Sequence[Task], interrupted: Interruption
) -> Generator[tuple[int, Any], None, None]:
    """Run tasks, as many at a time as there are processors; gives (index, result) as they end.

    They begin in the order given. A result is what the task returned, or a ``Failure``. Once
    ``interrupted``, no task is begun and those under way are asked to stop; their results still
    come. No process outlives this one.
    """
    left = list(reversed(range(len(tasks))))
    workers: list[_Worker] = []
    idle: list[_Worker] = []
    busy: dict[_Worker, int] = {}
    asked_to_stop = False
    try:
        while busy or (left and not interrupted()):
            while left and len(busy) < (os.cpu_count() or 1) and not interrupted():
                if not idle:
                    idle.append(_start())
                    workers.append(idle[-1])
                worker = idle.pop()
                busy[worker] = left.pop()
                with suppress(OSError):  # it has died, which is noticed below
                    worker.pipe.send(tasks[busy[worker]])
            if interrupted() and not asked_to_stop:
                asked_to_stop = True
                for worker in busy:
                    worker.process.terminate()
            ended = wait([worker.pipe for worker in busy], POLL_S)
            for worker in [worker for worker in busy if worker.pipe in ended]:
                index = busy.pop(worker)
                result, alive = _receive(worker)
                if alive:
                    idle.append(worker)
                yield index, result
    finally:
        _dismiss(workers)


def _start() -> _Worker:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_serve, args=(theirs,))
    with _signals_held_back():  # until the process has handlers of its own
        process.start()
    theirs.close()
    return _Worker(process, ours)


def _receive(worker: _Worker) -> tuple[Any | Failure, bool]:
    """A task's result, and whether its process takes another."""
    try:
        result, goes_on = worker.pipe.recv()
        return result, goes_on
    except (EOFError, OSError):
        worker.process.join()
        reason = f"its process died (exit code {worker.process.exitcode})"
        return Failure(RunFailed(reason), ""), False


def _dismiss(workers: Sequence[_Worker]) -> None:
    """End all processes; those that are busy are asked to, and are waited for."""
    for worker in workers:
        worker.pipe.close()
        worker.process.terminate()
    for worker in workers:
        worker.process.join()


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Signals that come inside arrive at the end. A process started inside begins like this."""
    ensure_running()  # the resource tracker, whose start would let them through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection) -> None:
    """The life of a worker process: one task after another until the parent closes the pipe."""
    with interruptible() as interrupted:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        Thread(target=_stop_without_parent, daemon=True).start()
        with suppress(EOFError, OSError):  # the parent is done, or dead
            goes_on = True  # even if told to stop already: the parent waits for a first result
            while goes_on:
                result = attempt(pipe.recv(), interrupted)
                goes_on = not interrupted()
                pipe.send((result, goes_on))


def _stop_without_parent() -> None:
    """Wait until the parent has died; what is under way is then saved as it stands."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def attempt(task: Task, interrupted: Interruption) -> Any | Failure:
    """What the task returns, or how it failed."""
    try:
        return task(interrupted)
    except FairbenchError as error:
        return Failure(error, traceback.format_exc())
    except Exception as error:  # one task's bug must not take the others with it
        return Failure(RunFailed(f"{type(error).__name__}: {error}"), traceback.format_exc())
