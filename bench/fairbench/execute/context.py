"""The run context: interruption, progress and executor, passed from the caller of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairbench.execute.executor import Executor, Task
from fairbench.execute.interruption import Interruption, interruptible
from fairbench.execute.local_processes import LocalProcesses


class Progress(Protocol):
    """A receiver of progress reports."""

    def watching(self) -> AbstractContextManager[None]:
        """Show progress within the block."""
        ...

    def update(self, state: Any) -> None:
        """Report the state of a piece of work.

        ``state`` is a text, a ``sim.progress.Progress``, or the progress that ``live.run.run_live``
        reports.
        """
        ...

    def tasks(self, costs: Sequence[float]) -> AbstractContextManager[Callable[[int], None]]:
        """Show tasks with these relative costs; call the result with each finished index."""
        ...

    def ended(self, name: str, number: int, count: int) -> None:
        """Report that task ``name`` has ended, as number ``number`` (from 1) of ``count``."""
        ...


class Silent:
    """Shows nothing."""

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
    """The interruption flag, the progress receiver and the executor of a run's tasks."""

    interrupted: Interruption = field(default_factory=Interruption)
    progress: Progress = field(default_factory=Silent)
    executor: Executor = field(default_factory=LocalProcesses)

    def run(
        self, tasks: Sequence[Task], costs: Sequence[float] | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Yield (index, result) as tasks end, like ``Executor.run``, and show the progress.

        ``costs`` are relative; by default they are equal.
        """
        running = self.executor.run(tasks, self.interrupted)
        shown = self.progress.tasks(costs or [1.0] * len(tasks))
        with shown as done, closing(running) as results:
            for index, result in results:
                done(index)
                yield index, result

    @property
    def on_progress(self) -> Callable[[Any], None] | None:
        """The function ``progress.update``; None without a progress receiver."""
        return None if type(self.progress) is Silent else self.progress.update


@contextmanager
def run_context(
    progress: Progress | None = None, executor: Executor | None = None
) -> Iterator[RunContext]:
    """Yield a context that signals interrupt; tasks run in local processes by default."""
    with interruptible() as interrupted:
        yield RunContext(interrupted, progress or Silent(), executor or LocalProcesses())
