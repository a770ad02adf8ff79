"""Progress displays: live on a terminal or in a notebook, or a line for each ended task."""

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

from fairbench.errors import printable
from fairbench.execute.tasks import DriveProgress, ServersProgress, Silent

if TYPE_CHECKING:
    from fairbench.execute.tasks import ProgressReceiver
    from fairbench.sim.run import SimulationProgress as Simulated


SHOWN_CLIENTS = 4
LINE_WIDTH = 80
# The remaining time is estimated only after 5 seconds and 0.1% of the run.
SETTLED_S = 5.0
SETTLED_PART = 0.001


def progress_line(state: Any, elapsed_s: float = 0.0) -> str:
    """Return a line on the progress of a run; ``ProgressReceiver.update`` lists the states.

    ``elapsed_s`` is the time since the start of the run. After some seconds, the line of a
    simulation includes the estimated remaining time.
    """
    from fairbench.sim.run import SimulationProgress as Simulated

    if isinstance(state, str):
        return state
    if isinstance(state, Simulated):
        return _simulated(state, elapsed_s)
    return _live(state)


def _simulated(progress: Simulated, elapsed_s: float) -> str:
    if progress.measuring:
        return f"computing metrics of {progress.programs_started:,} programs"
    now_s, end_s = f"{progress.sim_time_s:,.0f}", progress.end_s
    if end_s is None:
        time = f"simulated {now_s} s"
    elif progress.sim_time_s <= end_s:
        time = f"simulated {now_s} of {end_s:,.0f} s"
        if elapsed_s >= SETTLED_S and progress.sim_time_s > SETTLED_PART * end_s:
            left_s = elapsed_s * (end_s - progress.sim_time_s) / progress.sim_time_s
            left = f"{left_s / 60:,.0f} min" if left_s >= 90 else f"{left_s:.0f} s"
            time += f", {left} left"
    else:
        time = f"draining, simulated {now_s} s (arrivals ended at {end_s:,.0f} s)"
    line = f"{time}  programs {progress.programs_done:,}/{progress.programs_started:,}"
    label, shares = "share", list(progress.shares.values())
    if not shares:
        return line
    if len(shares) > SHOWN_CLIENTS:
        label, shares = "largest shares", sorted(shares, reverse=True)[:SHOWN_CLIENTS]
    return _with(line, f"  {label} {'/'.join(f'{share:.0%}'[:-1] for share in shares)}%")


def _live(progress: ServersProgress | DriveProgress) -> str:
    """Return a progress line: the number of ready servers or, later, the servers' throughput."""
    if isinstance(progress, ServersProgress):
        return f"servers ready {progress.ready}/{progress.total}"
    end = "" if progress.end_s is None else f" of {progress.end_s:,.0f}"
    line = (
        f"{progress.now_s:,.0f}{end} s  "
        f"programs {progress.programs_done:,}/{progress.programs_started:,}"
    )
    elapsed_s = max(progress.now_s, 1.0)
    rates = sorted((tokens / elapsed_s for tokens in progress.service.values()), reverse=True)
    shown = "/".join(f"{rate:,.0f}" for rate in rates[:SHOWN_CLIENTS])
    return _with(line, f"  service {shown} tok/s")


def _with(line: str, more: str) -> str:
    return line + more if len(line + more) <= LINE_WIDTH else line


def shown_progress() -> ProgressReceiver:
    """Return a progress display: live on a terminal or in a notebook, or else lines of text."""
    if sys.stderr is not None and sys.stderr.isatty():
        return TerminalProgress()
    has_notebook = Console(stderr=True).is_jupyter and find_spec("ipywidgets") is not None
    return TerminalProgress() if has_notebook else LineProgress()


def _tell_large(costs: Sequence[float]) -> None:
    """Print the expected duration and the size of the records if there are many requests."""
    from fairbench.execute.simulations import estimate

    if (whole := estimate(costs)).large:
        _tell(f"fairbench: {whole}")


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class LineProgress(Silent):
    """Progress output of one line per finished task, suitable for logs."""

    def __init__(self) -> None:
        self._begun_s = monotonic()

    def tasks(self, costs: Sequence[float]) -> AbstractContextManager[Callable[[int], None]]:
        """Print the expected duration of the tasks if they will take long."""
        _tell_large(costs)
        return super().tasks(costs)

    def ended(self, name: str, number: int, count: int) -> None:
        """Print which task has ended, and how long all tasks have taken so far."""
        elapsed_s = monotonic() - self._begun_s
        _tell(f"fairbench: {number} of {count} after {elapsed_s:,.0f} s: {printable(name)}")


class TerminalProgress:
    """A progress line or bar that is erased at the end, because the summary follows."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._begun_s = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Show the progress line while the ``with`` block runs."""
        console = Console(stderr=True)
        self._begun_s = monotonic()
        with Live(console=console, transient=True, refresh_per_second=8) as self._live:
            yield
        self._live = None

    def update(self, state: Any) -> None:
        """Replace the progress line by a line that shows ``state``."""
        if self._live is not None:
            line = progress_line(state, monotonic() - self._begun_s)
            self._live.update(Text(line, no_wrap=True))

    @contextmanager
    def tasks(self, costs: Sequence[float]) -> Iterator[Callable[[int], None]]:
        """Show a bar with the remaining time of tasks, estimated from their relative ``costs``."""
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
        """Print nothing, because the progress bar has already counted the ended task."""
