"""A table of public traces under all schedulers, with a row per scheduler.

    fairbench sweep examples/traces/every-scheduler.toml
    python studies traces-every results/runs/every-scheduler

The script writes results/tables/traces-every.csv. Each trace has columns for service (k tok/s),
minimum fair share, P99 TTFT (s), the fraction of requests that met their deadlines (if any), and
refused or unfinished requests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from fairbench.results.store import Summary, runs_in
from fairbench_studies.kit.table_store import write
from fairbench_studies.traces.table import TRACES


def cell(summary: Summary) -> str:
    """Return a table cell with the results of one trace under one scheduler."""
    share, on_time = summary["min_entitlement_ratio"], summary.get("goodput_ratio")
    parts = [
        f"{summary['service_rate_tok_s'] / 1000:.1f}",
        "-" if share is None else f"{share:.0%}",
        f"{summary['p99_ttft_ms'] / 1000:.1f}",
    ]
    parts += [] if on_time is None else [f"{on_time:.0%}"]
    left = [f"{summary[what]:,} {what}" for what in ("refused", "unfinished") if summary[what]]
    return " / ".join(parts) + "".join(f", {one}" for one in left)


def name(summary: Summary) -> str:
    """Return the name of a run's scheduler, or of its gateway if it has one."""
    gateway = summary.get("gateway")
    return f"gateway {gateway}" if gateway else str(summary["scheduler"])


def table(summaries: Iterable[Summary], order: Iterable[str]) -> list[dict[str, str]]:
    """Return a row per scheduler in ``order``, with a column per trace."""
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for summary in summaries:
        cells[name(summary)][str(summary["workload"])] = cell(summary)
    return [
        {"scheduler": one, **{trace: cells[one].get(trace, "") for trace in TRACES}}
        for one in order
    ]


def main(folder: str) -> None:
    """Write results/tables/traces-every.csv from the runs in ``folder``."""
    summaries = [run.summary for run in runs_in(Path(folder) / "runs")]
    names = set(map(name, summaries))
    order = sorted(names, key=lambda one: (one.startswith("gateway"), "+" in one, one))
    write("traces-every", table(summaries, order))
