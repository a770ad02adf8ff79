"""Live progress of a run on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairbench.sim.run import Progress

SHOWN_CLIENTS = 4
LINE_WIDTH = 80


def progress_line(progress: Progress) -> str:
    """Simulated time, programs done and the clients' shares of the service so far.

    At most ``LINE_WIDTH`` columns, so that it stays one line: without the shares if need be.
    """
    now_s, end_s = f"{progress.sim_time_s:,.0f}", progress.end_s
    if end_s is None:
        time = f"simulated {now_s} s"
    elif progress.sim_time_s <= end_s:
        time = f"simulated {now_s} of {end_s:,.0f} s"
    else:
        time = f"draining, simulated {now_s} s (arrivals ended at {end_s:,.0f} s)"
    line = f"{time}  programs {progress.programs_done:,}/{progress.programs_started:,}"
    shares = _shares(list(progress.shares.values()))
    return line + shares if len(line + shares) <= LINE_WIDTH else line


def _shares(shares: list[float]) -> str:
    label = "share"
    if len(shares) > SHOWN_CLIENTS:
        label, shares = "largest shares", sorted(shares, reverse=True)[:SHOWN_CLIENTS]
    return f"  {label} {'/'.join(f'{share:.0%}'[:-1] for share in shares)}%" if shares else ""


@contextmanager
def live_progress(
    wanted: bool, line: Callable[[Any], str] = progress_line
) -> Iterator[Callable[[Any], None] | None]:
    """A callback that keeps one line up to date; None off a terminal or when not wanted."""
    if not _is_shown(wanted):
        yield None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    # Erased at the end: the summary says it all.
    with Live(console=Console(stderr=True), transient=True, refresh_per_second=8) as live:
        yield lambda progress: live.update(Text(line(progress), no_wrap=True))


@contextmanager
def task_progress(wanted: bool, costs: Sequence[float]) -> Iterator[Callable[[int], None]]:
    """A bar over tasks of such relative costs, with the time left; call it with who is done."""
    if not _is_shown(wanted):
        yield lambda index: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [
        TextColumn("{task.fields[done]}/{task.fields[count]}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    ]
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, speed_estimate_period=600) as bar:
        task = bar.add_task("", total=sum(costs), done=0, count=len(costs))

        def done(index: int) -> None:
            bar.update(task, advance=costs[index], done=bar.tasks[0].fields["done"] + 1)

        yield done


def _is_shown(wanted: bool) -> bool:
    return wanted and sys.stderr is not None and sys.stderr.isatty()
