"""The executor: runs tasks, with the common interface of all ways to run many."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fairbench.errors import FairbenchError, RunFailed
from fairbench.execute.interruption import Interruption

Task = Callable[[Interruption], Any]
"""A piece of work. The task is pickled, polls whether to stop, and saves its results."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A task that reads files, with the names by which the user gave them.

    An executor on another machine sends the files there.
    """

    work: Task
    reads: tuple[str, ...]

    def __call__(self, interrupted: Interruption) -> Any:
        return self.work(interrupted)


@dataclass(frozen=True, slots=True)
class Saving:
    """A task that saves only into one folder; ``reads`` are the files that it reads.

    An executor on another machine returns the saved files.
    """

    work: Callable[[Path, Interruption], Any]
    folder: Path
    reads: tuple[str, ...] = ()

    def __call__(self, interrupted: Interruption) -> Any:
        return self.work(self.folder, interrupted)


class Failure(NamedTuple):
    """A failed task: the error to raise, and the traceback if there was one."""

    error: FairbenchError
    details: str


class Executor(Protocol):
    """Runs tasks, several at a time if possible."""

    def run(
        self, tasks: Sequence[Task], interrupted: Interruption
    ) -> Generator[tuple[int, Any], None, None]:
        """Yield (index, result) as tasks end; a result is the returned value or a ``Failure``.

        Tasks begin in the given order. Once ``interrupted``, no task begins, and running tasks are
        asked to stop; their results are still yielded. Nothing is left running when the generator
        is closed.
        """
        ...


def attempt(task: Task, interrupted: Interruption) -> Any | Failure:
    """Run the task; return its result, or the ``Failure``."""
    try:
        return task(interrupted)
    except FairbenchError as error:
        return Failure(error, traceback.format_exc())
    except Exception as error:  # one task's bug must not take the others with it
        return Failure(RunFailed(f"{type(error).__name__}: {error}"), traceback.format_exc())
