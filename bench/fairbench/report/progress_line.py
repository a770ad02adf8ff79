"""The progress line: the state of a run, in at most ``LINE_WIDTH`` columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairbench.sim.run import Progress

SHOWN_CLIENTS = 4
LINE_WIDTH = 80
# Until then the pace is that of a run that has just begun.
SETTLED_S = 5.0
SETTLED_PART = 0.001


def progress_line(state: Any, elapsed_s: float = 0.0) -> str:
    """Return the line that shows a reported state (see ``execute.context.Progress.update``).

    ``elapsed_s`` is the time so far. After some seconds, a simulation also shows an estimate of the
    time left.
    """
    from fairbench.sim.run import Progress

    if isinstance(state, str):
        return state
    if isinstance(state, Progress):
        return _simulated(state, elapsed_s)
    return _live(state)


def _time_left(progress: Progress, elapsed_s: float) -> str:
    """Return the estimated time until all requests have arrived, or an empty text if unknown."""
    now_s, end_s = progress.sim_time_s, progress.end_s
    if elapsed_s < SETTLED_S or end_s is None or not SETTLED_PART * end_s < now_s <= end_s:
        return ""
    left_s = elapsed_s * (end_s - now_s) / now_s
    return f"{left_s / 60:,.0f} min left" if left_s >= 90 else f"{left_s:.0f} s left"


def _simulated(progress: Progress, elapsed_s: float) -> str:
    """Describe a simulation: time, finished programs, and service shares if they fit."""
    if progress.measuring:
        return f"computing metrics of {progress.programs_started:,} programs"
    now_s, end_s = f"{progress.sim_time_s:,.0f}", progress.end_s
    if end_s is None:
        time = f"simulated {now_s} s"
    elif progress.sim_time_s <= end_s:
        time = f"simulated {now_s} of {end_s:,.0f} s"
    else:
        time = f"draining, simulated {now_s} s (arrivals ended at {end_s:,.0f} s)"
    if left := _time_left(progress, elapsed_s):
        time += f", {left}"
    line = f"{time}  programs {progress.programs_done:,}/{progress.programs_started:,}"
    return _with(line, _shares(list(progress.shares.values())))


def _shares(shares: list[float]) -> str:
    label = "share"
    if len(shares) > SHOWN_CLIENTS:
        label, shares = "largest shares", sorted(shares, reverse=True)[:SHOWN_CLIENTS]
    return f"  {label} {'/'.join(f'{share:.0%}'[:-1] for share in shares)}%" if shares else ""


def _live(progress: Any) -> str:
    """Describe a live run: ready servers, then finished programs and throughput."""
    from fairbench.live.run import ServersProgress  # needs the live extra

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
