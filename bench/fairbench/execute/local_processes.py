"""Tasks in parallel processes of this machine, which survive each other's crashes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from threading import Thread
from types import ModuleType
from typing import Any, NamedTuple

from fairbench.errors import RunFailed
from fairbench.execute.executor import Failure, Task, attempt
from fairbench.execute.interruption import SIGNALS, Interruption, interruptible

# Spawned, so that a process starts clean even if this one has threads.
SPAWN = get_context("spawn")


class Child(NamedTuple):
    """A process, and the parent's end of its pipe."""

    process: BaseProcess
    pipe: Connection


def start_child(target: Callable[..., None], *arguments: Any) -> Child:
    """Call ``target(pipe, *arguments)`` in a new process.

    The child blocks signals until its own handlers are installed.
    """
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(theirs, *arguments))
    with _signals_held_back(), _without_script():
        process.start()
    theirs.close()
    return Child(process, ours)


def leave_signals_to_parent() -> None:
    """Ignore signals in a child: its parent receives them too, and decides."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Delay signals to the end of the block; a process started inside inherits the mask."""
    ensure_running()  # the resource tracker, whose start would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_script() -> Iterator[None]:
    """Hide this process's script, so that a process started inside does not run it again."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


POLL_S = 0.2


class LocalProcesses:
    """Runs a task in a process for each processor of this machine.

    A task is a function of a module that can be imported, not of a script. No process outlives this
    one.
    """

    def run(
        self, tasks: Sequence[Task], interrupted: Interruption
    ) -> Generator[tuple[int, Any], None, None]:
        """Run the tasks; if a process dies, only its own task fails."""
        left = list(reversed(range(len(tasks))))
        workers: list[Child] = []
        idle: list[Child] = []
        busy: dict[Child, int] = {}
        asked_to_stop = False
        try:
            while busy or (left and not interrupted()):
                while left and len(busy) < (os.cpu_count() or 1) and not interrupted():
                    if not idle:
                        idle.append(start_child(_serve))
                        workers.append(idle[-1])
                    worker = idle.pop()
                    busy[worker] = left.pop()
                    with suppress(OSError):  # the process has died, which is noticed below
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


def _receive(worker: Child) -> tuple[Any | Failure, bool]:
    """Return a task's result, and whether its process accepts another task."""
    try:
        result, goes_on = worker.pipe.recv()
        return result, goes_on
    except (EOFError, OSError):
        worker.process.join()
        reason = f"its process died (exit code {worker.process.exitcode})"
        return Failure(RunFailed(reason), ""), False


def _dismiss(workers: Sequence[Child]) -> None:
    """End all processes; ask busy ones to stop, and wait for them."""
    for worker in workers:
        worker.pipe.close()
        worker.process.terminate()
    for worker in workers:
        worker.process.join()


def _serve(pipe: Connection) -> None:
    """Run a worker process: execute tasks until the parent closes the pipe."""
    with interruptible() as interrupted:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        Thread(target=_stop_without_parent, daemon=True).start()
        # the parent is finished or dead, or interrupted a task that does not end
        with suppress(EOFError, OSError, KeyboardInterrupt):
            # even after a request to stop, because the parent waits for a first result
            goes_on = True
            while goes_on:
                result = attempt(pipe.recv(), interrupted)
                goes_on = not interrupted()
                pipe.send((result, goes_on))


def _stop_without_parent() -> None:
    """Wait for the parent's death, then stop, so that unfinished work is saved."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
