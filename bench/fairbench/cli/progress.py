"""Live progress of a simulation on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairbench.sim.run import Progress

SHOWN_CLIENTS = 4
LINE_WIDTH = 80


@contextmanager
def live_progress(wanted: bool) -> Iterator[Callable[[Progress], None] | None]:
    """A callback that keeps one line up to date; None off a terminal or when not wanted."""
    if not (wanted and sys.stderr and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    # Erased at the end: the summary says it all.
    with Live(console=Console(stderr=True), transient=True, refresh_per_second=8) as live:
        yield lambda progress: live.update(Text(progress_line(progress), no_wrap=True))


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
