"""Tasks, their interruption, executors that run them, and progress reports."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from threading import Thread
from types import FrameType, ModuleType
from typing import Any, NamedTuple, Protocol

from fairbench.errors import FairbenchError, Interrupted, RunFailed

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# If a task does not read its interruption flag within 1 s of a signal, the next signal raises
# KeyboardInterrupt.
STUCK_S = 1.0


class Interruption:
    """A callable that returns whether a signal has arrived."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._noticed = False
        self._asked_s = 0.0

    def __call__(self) -> bool:
        self._noticed = self.signum is not None
        return self._noticed

    def ask(self, signum: int, _: FrameType | None) -> None:
        """Handle a signal; raise KeyboardInterrupt if the code ignored an earlier signal."""
        now_s = time.monotonic()
        if self.signum is None:
            self.signum, self._asked_s = signum, now_s
        elif not self._noticed and now_s - self._asked_s > STUCK_S:
            raise KeyboardInterrupt

    @property
    def exit_code(self) -> int:
        """The exit code of an interrupted command: 128 plus the signal's number."""
        return 128 + (self.signum or signal.SIGINT)

    def ended(self, message: str) -> Interrupted:
        """Return the exception ``Interrupted``, to be raised after all tasks have stopped."""
        return Interrupted(message, self.exit_code)


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Within the block, record SIGINT and SIGTERM in the yielded ``Interruption``.

    By default, Python may raise KeyboardInterrupt in the middle of a state change. Code in the
    ``with`` block must check the ``Interruption`` often, stop at a safe point and save its results.
    If the code makes no check for 1 s after a signal, as in an endless loop, the next signal raises
    KeyboardInterrupt. Outside the main thread, signals have their usual effect.
    """
    asked = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    previous = {signum: signal.signal(signum, asked.ask) for signum in SIGNALS}
    try:
        yield asked
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


Task = Callable[[Interruption], Any]
"""A picklable function that saves its results.

A task checks its ``Interruption`` often, and stops early after a signal.
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """A task that reads the user's files ``reads`` (a sequence of paths).

    If the task runs on another machine, the executor first sends the files in ``reads``.
    """

    work: Task
    reads: tuple[str, ...]

    def __call__(self, interrupted: Interruption) -> Any:
        return self.work(interrupted)


@dataclass(frozen=True, slots=True)
class Saving:
    """A task that saves files in a single folder; ``reads`` are the files that the task reads.

    If the task runs on another machine, the executor sends the saved files back to this machine.
    """

    work: Callable[[Path, Interruption], Any]
    folder: Path
    reads: tuple[str, ...] = ()

    def __call__(self, interrupted: Interruption) -> Any:
        return self.work(self.folder, interrupted)


class Failure(NamedTuple):
    """A failed task, with the error to raise and the traceback of an unexpected error."""

    error: FairbenchError
    details: str


class Executor(Protocol):
    """An executor of tasks, which runs several tasks at a time if possible."""

    def run(
        self, tasks: Sequence[Task], interrupted: Interruption
    ) -> Generator[tuple[int, Any], None, None]:
        """Yield (index, result) as tasks end; the result of a failed task is a ``Failure``.

        Tasks are started in the given order. After an interruption, no more tasks are started.
        Running tasks are asked to stop, and their results are still yielded. Closing the generator
        ends all tasks.
        """
        ...


def attempt(task: Task, interrupted: Interruption) -> Any | Failure:
    """Run the task; return the task's result or, if the task fails, a ``Failure``."""
    try:
        return task(interrupted)
    except FairbenchError as error:
        return Failure(error, traceback.format_exc())
    except Exception as error:  # An error in one task must not end the other tasks.
        return Failure(RunFailed(f"{type(error).__name__}: {error}"), traceback.format_exc())


# "spawn" starts a clean process; "fork" is unsafe if this process has threads.
SPAWN = get_context("spawn")


class Child(NamedTuple):
    """A child process, and the parent's end of the pipe to the child."""

    process: BaseProcess
    pipe: Connection


def start_child(target: Callable[..., None], *arguments: Any) -> Child:
    """Call ``target(pipe, *arguments)`` in a new child process.

    Signals are blocked in the child until its own signal handlers are installed.
    """
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(theirs, *arguments))
    with _signals_held_back(), _without_script():
        process.start()
    theirs.close()
    return Child(process, ours)


def leave_signals_to_parent() -> None:
    """Ignore signals in a child process, because the parent handles them."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Delay signals until the ``with`` block ends, even in processes that start in the block."""
    # The resource tracker must start first, because its start would unblock the signals.
    ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_script() -> Iterator[None]:
    """Hide the main script of this process, so that child processes do not run it again."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


POLL_S = 0.2


class LocalProcesses:
    """An executor that runs tasks in one process per processor of this machine.

    A task must be a function of an importable module, not of a script. The worker processes end
    when this process ends.
    """

    def run(
        self, tasks: Sequence[Task], interrupted: Interruption
    ) -> Generator[tuple[int, Any], None, None]:
        """Run the tasks. If a worker process dies, only its own task fails."""
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
                    with suppress(OSError):  # A later check detects a dead worker process.
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
    """Return the result of a task, and whether the worker process accepts another task."""
    try:
        result, goes_on = worker.pipe.recv()
        return result, goes_on
    except (EOFError, OSError):
        worker.process.join()
        reason = f"its process died (exit code {worker.process.exitcode})"
        return Failure(RunFailed(reason), ""), False


def _dismiss(workers: Sequence[Child]) -> None:
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
        # EOFError and OSError mean that the parent has ended. KeyboardInterrupt means that the
        # parent has interrupted a task that does not end.
        with suppress(EOFError, OSError, KeyboardInterrupt):
            # After a signal, a received task still runs, because the parent waits for its result.
            goes_on = True
            while goes_on:
                result = attempt(pipe.recv(), interrupted)
                goes_on = not interrupted()
                pipe.send((result, goes_on))


def _stop_without_parent() -> None:
    """Wait until the parent process ends; then ask the running task to save its work and stop."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


class ServersProgress(NamedTuple):
    """The progress of a start of servers: ``ready`` of ``total`` servers are ready."""

    ready: int
    total: int


@dataclass(frozen=True, slots=True)
class DriveProgress:
    """The progress of a run on real servers. Times are in seconds since the start of the run.

    ``service`` holds each client's weighted tokens (input + 2 x output) in finished requests.
    """

    now_s: float
    end_s: float | None
    programs_done: int
    programs_started: int
    service: dict[str, int]


class ProgressReceiver(Protocol):
    """The interface for objects that receive progress reports of tasks and runs."""

    def watching(self) -> AbstractContextManager[None]:
        """Show progress while the ``with`` block runs."""
        ...

    def update(self, state: Any) -> None:
        """Report the progress of a task or a run.

        ``state`` is a text or a progress object. A simulation reports ``SimulationProgress``. A run
        on servers reports ``ServersProgress`` or ``DriveProgress``.
        """
        ...

    def tasks(self, costs: Sequence[float]) -> AbstractContextManager[Callable[[int], None]]:
        """Show the progress of tasks; the yielded function takes each finished task's index."""
        ...

    def ended(self, name: str, number: int, count: int) -> None:
        """Report that task ``name`` has ended, as number ``number`` (from 1) of ``count`` tasks."""
        ...


class Silent:
    """A progress receiver that prints nothing."""

    def watching(self) -> AbstractContextManager[None]:
        return nullcontext()

    def update(self, state: Any) -> None:
        pass

    def tasks(self, costs: Sequence[float]) -> AbstractContextManager[Callable[[int], None]]:
        return nullcontext(lambda index: None)

    def ended(self, name: str, number: int, count: int) -> None:
        pass


@dataclass(frozen=True, slots=True)
class RunContext:
    """The environment of tasks: interruption flag, progress receiver and executor."""

    interrupted: Interruption = field(default_factory=Interruption)
    progress: ProgressReceiver = field(default_factory=Silent)
    executor: Executor = field(default_factory=LocalProcesses)

    def run(
        self, tasks: Sequence[Task], costs: Sequence[float] | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Yield (index, result) as tasks end, like ``Executor.run``, and show the progress.

        ``costs`` are the relative durations of the tasks; by default, all durations are equal.
        """
        running = self.executor.run(tasks, self.interrupted)
        shown = self.progress.tasks(costs or [1.0] * len(tasks))
        with shown as done, closing(running) as results:
            for index, result in results:
                done(index)
                yield index, result

    @property
    def on_progress(self) -> Callable[[Any], None] | None:
        """Return ``progress.update``, or None if no progress is shown."""
        return None if type(self.progress) is Silent else self.progress.update


@contextmanager
def run_context(
    progress: ProgressReceiver | None = None, executor: Executor | None = None
) -> Iterator[RunContext]:
    """Yield a ``RunContext``, in which SIGINT and SIGTERM only set the interruption flag."""
    with interruptible() as interrupted:
        yield RunContext(interrupted, progress or Silent(), executor or LocalProcesses())
