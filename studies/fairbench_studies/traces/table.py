"""A table of public traces under several schedulers.

    fairbench sweep examples/traces/sweep.toml
    python studies traces results/runs/traces

The script writes results/tables/traces.csv. The traces are not part of this repository; the
workload files name their sources.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fairbench.results.store import StoredRun, Summary, runs_in
from fairbench_studies.kit.table_store import write

TRACES = ("mooncake", "azure", "arena", "agents", "reasoning-clients", "small-model-clients")
SCHEDULERS = ("fcfs", "lpm", "vtc", "dlpm", "d2lpm", "preble")


def row(summary: Summary) -> dict[str, str]:
    """Return the table row of one trace under one scheduler."""
    shares = [one["entitlement_ratio"] for one in summary["clients"]]
    judged = [share for share in shares if share is not None]
    below = sum(share < 0.5 for share in judged)
    return {
        "trace": summary["workload"],
        "scheduler": summary["scheduler"],
        "requests": f"{summary['num_requests']:,}",
        "k tok/s": f"{summary['service_rate_tok_s'] / 1000:.1f}",
        "cached": _percent(summary["cache_hit_rate"]),
        "min. fair share of own": _percent(summary["min_entitlement_ratio"]),
        "below half": f"{below} of {len(judged)}" if judged else "-",
        "P50 TTFT, s": f"{summary['p50_ttft_ms'] / 1000:.2f}",
        "P99 TTFT, s": f"{summary['p99_ttft_ms'] / 1000:.1f}",
        "P99 whole, s": f"{summary['p99_e2el_ms'] / 1000:.1f}",
        "on time": _percent(summary.get("goodput_ratio")),
        "unfinished": f"{summary['unfinished']:,}",
    }


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def table(runs: Iterable[StoredRun]) -> list[dict[str, str]]:
    """Return a table row for each trace and scheduler."""
    rows = [row(run.summary) for run in runs]
    return sorted(
        rows, key=lambda one: (TRACES.index(one["trace"]), SCHEDULERS.index(one["scheduler"]))
    )


def main(folder: str) -> None:
    """Write results/tables/traces.csv from the runs in ``folder``."""
    write("traces", table(runs_in(Path(folder) / "runs")))
