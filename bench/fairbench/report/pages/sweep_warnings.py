"""Warnings on a sweep: facts that a reader must know to judge its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairbench.metrics.contention import hides_backlog
from fairbench.metrics.tail import ENOUGH, is_carried, shown_tail
from fairbench.report.comparison_table import LIMITED
from fairbench.report.pages.run_warnings import is_above_bound, window_is_short
from fairbench.report.result_lines import NO_ORDER
from fairbench.results.comparison import SchedulerResults
from fairbench.results.store import Summary, read_json
from fairbench.results.sweep_store import SweepStore


def sweep_warnings(store: SweepStore, cells: Sequence[SchedulerResults]) -> Iterator[str]:
    """Yield missing and failed points, and the number of runs with warnings."""
    points = len(read_json(store.path / "index.json")["points"])
    finished = sum(len(cell.runs) for cell in cells)
    if finished < points:
        yield f"Only {finished} of {points} points are finished."
    for file in sorted((store.path / "failed").glob("*.json")):
        failure = read_json(file)
        yield f"Failed: {failure.get('point')}: {failure.get('error')}"
    yield from counted_warnings([one.summary for cell in cells for one in cell.runs])
    limited = {cell.place for cell in cells if cell.demand_limited}
    if limited:
        places = len({cell.place for cell in cells})
        yield (
            f"{len(limited)} of {places} configurations are limited by demand "
            f"({LIMITED}), so rates show the load there."
        )


def counted_warnings(runs: Sequence[Summary]) -> Iterator[str]:
    """Yield each warning with the number of runs that have it."""
    tail = shown_tail(runs)
    counts = {
        "ended early": sum(not run["complete"] for run in runs),
        "had requests that failed or were refused": sum(
            run["failed"] + run["refused"] > 0 for run in runs
        ),
        "had requests unfinished at the end; percentiles among them are lower bounds (> x)": sum(
            run["unfinished"] > 0 for run in runs
        ),
        "have no Jain index of computed service": sum(
            run["jain_index_actual"] is None for run in runs
        ),
        "sent requests late": sum("lateness" in run["notes"] for run in runs),
        f"have a window shorter than the P{tail} of the well-behaved clients": sum(
            window_is_short(run, tail) for run in runs
        ),
        f"have fewer than {ENOUGH[tail]} latencies for a P{tail}": sum(
            not is_carried(run["victim_n"], tail) for run in runs
        ),
        f"hide their backlog in the running batch ({NO_ORDER})": sum(map(hides_backlog, runs)),
        "have a service gap above the bound of the theorem": sum(map(is_above_bound, runs)),
    }
    yield from (f"{count} of {len(runs)} runs {what}." for what, count in counts.items() if count)
