"""Warnings at the top of pages of runs, repeats and sweeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairbench.metrics.contention import hides_backlog
from fairbench.metrics.shown_percentiles import ENOUGH, is_carried, shown_tail
from fairbench.report.comparison_table import LIMITED, QUEUES_EMPTY, unfinished
from fairbench.report.numbers import latency, number, percent, whole
from fairbench.report.result_lines import (
    NO_ORDER,
    empty_queues,
    hidden_backlog,
    is_extrapolated,
)
from fairbench.results.comparison import SchedulerResults
from fairbench.results.store import Summary, SweepStore

# keys of the notes that are about the whole run, not about a metric
REMARKS = ("complete", "workers", "lateness", "errors", "estimated", "lengths", "cache", "dataset")
JAIN = {"jain_index": "service", "jain_index_actual": "computed service"}


def run_warnings(summary: Summary) -> Iterator[str]:
    """Yield the warnings about a run, beginning with the most serious."""
    notes = summary["notes"]
    if not summary["complete"]:
        yield ("Incomplete: the run ended early.")
    if summary.get("synthetic"):
        yield f"Synthetic: {summary['synthetic']}."
    yield from (f"{key.capitalize()}: {notes[key]}." for key in REMARKS if key in notes)
    for key, what in JAIN.items():
        if summary[key] is None:
            yield f"The Jain index of {what} is undefined: {notes.get(key, 'no reason is stored')}."
    if lost := summary["failed"] + summary["refused"]:
        yield (
            f"{number(lost)} of {number(summary['num_requests'])} requests failed or were "
            "refused; their latency counts as infinite."
        )
    if summary["unfinished"]:
        yield (
            f"{number(summary['unfinished'])} of {number(summary['num_requests'])} requests were "
            "unfinished at the end; a percentile that falls among them is a lower bound (> x)."
        )
    if is_extrapolated(summary):
        outside = percent(summary["outside_fit_ratio"])
        yield (
            f"{outside} of the GPU time is extrapolated: its batches or contexts are "
            "larger than those to which the timing profile was fitted."
        )
    if hides_backlog(summary):
        yield f"Backlog {hidden_backlog(summary)}."
    yield from _of_the_window(summary)
    if is_above_bound(summary):
        yield ("The largest service gap exceeds the bound of the theorem.")


def is_above_bound(summary: Summary) -> bool:
    """Return whether the largest service gap exceeds the bound that a theorem proves."""
    gap, bound = summary["max_service_gap"], summary["service_gap_bound"]
    return gap is not None and bound is not None and bool(gap > bound)


def window_is_short(summary: Summary, tail: int) -> bool:
    """Return whether the well-behaved clients' P``tail`` latency exceeds the measured window."""
    slowest_s = summary[f"victim_p{tail}_s"]
    return slowest_s is not None and bool(slowest_s > _window_s(summary))


def _window_s(summary: Summary) -> float:
    return float(summary["window_end_s"] - summary["window_start_s"])


def _of_the_window(summary: Summary) -> Iterator[str]:
    tail = shown_tail([summary])
    if window_is_short(summary, tail):
        shown = latency(summary, f"victim_p{tail}_s", set(summary["censored"]))
        yield (
            f"The measured window ({whole(_window_s(summary))} s) is shorter than the "
            f"P{tail} latency of the well-behaved clients ({shown} s), so the slowest "
            "programs got most of their service after the window."
        )
    if not is_carried(n := summary["victim_n"], tail):
        yield (f"A P{tail} needs about {ENOUGH[tail]} latencies, and a client has only {n}.")
    if summary["demand_limited"]:
        text = empty_queues(summary)
        yield f"{text[0].upper()}{text[1:]}."


def sweep_warnings(store: SweepStore, cells: Sequence[SchedulerResults]) -> Iterator[str]:
    """Yield warnings about missing, failed and doubtful runs, with the number of such runs."""
    yield from unfinished(cells)
    for name, error in store.failures().items():
        yield f"Failed: {name}: {error}"
    yield from counted_warnings([one.summary for cell in cells for one in cell.runs])
    limited = {cell.place for cell in cells if cell.demand_limited}
    if limited:
        places = len({cell.place for cell in cells})
        yield (
            f"{QUEUES_EMPTY} in {len(limited)} of {places} configurations ({LIMITED}), so rates "
            "partly reflect the load there."
        )


def counted_warnings(runs: Sequence[Summary]) -> Iterator[str]:
    """Yield each warning with the number of runs to which it applies."""
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
