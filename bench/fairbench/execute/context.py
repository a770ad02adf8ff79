"""The run context: what whoever runs experiments is told by whoever asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairbench.execute.executor import Executor
from fairbench.execute.interruption import Interruption, interruptible
from fairbench.execute.local_processes import LocalProcesses


class Progress(Protocol):
    """A receiver of progress reports."""

    def watching(self) -> AbstractContextManager[None]:
        """Inside, what ``update`` is told is shown."""
        ...

    def update(self, state: Any) -> None:
        """Report the state of a piece of work.

        ``state`` is a text, a ``sim.run.Progress``, or the progress that ``live.run.run_live``
        reports.
        """
        ...

    def tasks(self, costs: Sequence[float]) -> AbstractContextManager[Callable[[int], None]]:
        """Inside, tasks of such relative costs are under way; call it with the index of each."""
        ...

    def ended(self, name: str, number: int, count: int) -> None:
        """Report that task ``name`` has ended, as the ``number``-th of ``count``, from 1."""
        ...


class Silent:
    """Shows nothing."""

    def watching(self) -> AbstractContextManager[None]:
        """Return a context in which nothing is shown."""
        return nullcontext()

    def update(self, state: Any) -> None:
        """Forget it."""

    def tasks(self, costs: Sequence[float]) -> AbstractContextManager[Callable[[int], None]]:
        """Return a callback that ignores the indices of finished tasks."""
        return nullcontext(lambda index: None)

    def ended(self, name: str, number: int, count: int) -> None:
        """Forget it."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """The interruption flag, the progress receiver and the executor of a run's tasks."""

    interrupted: Interruption = field(default_factory=Interruption)
    progress: Progress = field(default_factory=Silent)
    executor: Executor = field(default_factory=LocalProcesses)

    @property
    def on_progress(self) -> Callable[[Any], None] | None:
        """``progress.update``; None if nobody looks, so that there need be nothing to tell."""
        return None if type(self.progress) is Silent else self.progress.update


@contextmanager
def run_context(
    progress: Progress | None = None, executor: Executor | None = None
) -> Iterator[RunContext]:
    """Yield a context that ``interruptible`` signals interrupt; local processes are the default."""
    with interruptible() as interrupted:
        yield RunContext(interrupted, progress or Silent(), executor or LocalProcesses())
