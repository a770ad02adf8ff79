"""Live progress of a simulation on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairbench.sim.run import Progress

SHOWN_CLIENTS = 6


@contextmanager
def live_progress(wanted: bool) -> Iterator[Callable[[Progress], None] | None]:
    """A callback that keeps one line up to date; None off a terminal or when not wanted."""
    if not (wanted and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    # Erased at the end: the summary says it all.
    with Live(console=Console(stderr=True), transient=True, refresh_per_second=8) as live:
        yield lambda progress: live.update(Text(progress_line(progress), no_wrap=True))


def progress_line(progress: Progress) -> str:
    """Simulated time, programs done and each client's share of the service so far."""
    shares = [f"{client} {share:.0%}" for client, share in progress.shares.items()]
    if len(shares) > SHOWN_CLIENTS:
        shares[SHOWN_CLIENTS:] = [f"and {len(shares) - SHOWN_CLIENTS} more"]
    end = "" if progress.end_s is None else f" of {progress.end_s:,.0f}"
    return (
        f"simulated {progress.sim_time_s:,.0f}{end} s   "
        f"programs {progress.programs_done:,}/{progress.programs_started:,}   "
        f"share {', '.join(shares)}"
    )
