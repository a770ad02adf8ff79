"""Live progress on a terminal or in a notebook, else a line for each task."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from fairbench.errors.printable import printable
from fairbench.execute.context import Silent
from fairbench.report.progress_line import progress_line

if TYPE_CHECKING:
    from fairbench.execute.context import Progress


def shown_progress(wanted: bool) -> Progress:
    """Return the progress display: live on a terminal or in a notebook, else lines."""
    if not wanted:
        return Silent()
    return TerminalProgress() if _has_terminal() or _has_notebook() else LineProgress()


def _has_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _has_notebook() -> bool:
    return Console(stderr=True).is_jupyter and find_spec("ipywidgets") is not None


def _tell_large(costs: Sequence[float]) -> None:
    """Announce the expected duration and size of the records if there are many requests."""
    from fairbench.execute.estimate import estimate

    if (whole := estimate(costs)).large:
        _tell(f"fairbench: {whole}")


def _tell(line: str) -> None:
    """Write a line on stderr at once."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class LineProgress(Silent):
    """A line for each finished task, so that a log shows progress."""

    def __init__(self) -> None:
        self._begun_s = monotonic()

    def tasks(self, costs: Sequence[float]) -> AbstractContextManager[Callable[[int], None]]:
        """Announce the amount of work if it is large."""
        _tell_large(costs)
        return super().tasks(costs)

    def ended(self, name: str, number: int, count: int) -> None:
        """Print which task ended and the time elapsed so far.

        Args:
            name: Name of the task.
            number: Number of tasks that have ended.
            count: Number of all tasks.
        """
        elapsed_s = monotonic() - self._begun_s
        _tell(f"fairbench: {number} of {count} after {elapsed_s:,.0f} s: {printable(name)}")


class TerminalProgress:
    """A progress line or bar, erased at the end because the summary follows."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._begun_s = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, the line is shown."""
        console = Console(stderr=True)
        self._begun_s = monotonic()
        with Live(console=console, transient=True, refresh_per_second=8) as self._live:
            yield
        self._live = None

    def update(self, state: Any) -> None:
        """Replace the line."""
        if self._live is not None:
            line = progress_line(state, monotonic() - self._begun_s)
            self._live.update(Text(line, no_wrap=True))

    @contextmanager
    def tasks(self, costs: Sequence[float]) -> Iterator[Callable[[int], None]]:
        """Show a bar with the time left over tasks with the given relative costs."""
        _tell_large(costs)
        columns = [
            TextColumn("{task.fields[done]}/{task.fields[count]}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        ]
        console = Console(stderr=True)
        with Bar(*columns, console=console, transient=True, speed_estimate_period=600) as bar:
            task = bar.add_task("", total=sum(costs), done=0, count=len(costs))

            def done(index: int) -> None:
                bar.update(task, advance=costs[index], done=bar.tasks[0].fields["done"] + 1)

            yield done

    def ended(self, name: str, number: int, count: int) -> None:
        """Do nothing: the bar already shows the progress.

        Args:
            name: Name of the task.
            number: Number of tasks that have ended.
            count: Number of all tasks.
        """
