r"""Results of schedulers on traces with random requests, as means and ranges over seeds.

    fairbench sweep examples/traces/sweep.toml --name seeds --num-runs 3 \\
        --workloads examples/traces/reasoning-clients.toml,examples/traces/small-model-clients.toml
    python studies traces-seeds results/runs/seeds

The script writes results/tables/traces-seeds.csv.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from fairbench.results.store import Summary, runs_in
from fairbench_studies.kit.table_store import write
from fairbench_studies.traces.table import SCHEDULERS, TRACES

METRICS = {
    "k tok/s": ("service_rate_tok_s", 1e-3, 1),
    "min. fair share of own, %": ("min_entitlement_ratio", 100, 1),
    "P50 TTFT, s": ("p50_ttft_ms", 1e-3, 2),
    "P99 TTFT, s": ("p99_ttft_ms", 1e-3, 1),
    "P99 whole, s": ("p99_e2el_ms", 1e-3, 1),
}


def rows(summaries: Iterable[Summary]) -> list[dict[str, str]]:
    """Return a table row for each trace and scheduler."""
    cells = defaultdict(list)
    for summary in summaries:
        cells[summary["workload"], summary["scheduler"]].append(summary)
    order = sorted(cells, key=lambda cell: (TRACES.index(cell[0]), SCHEDULERS.index(cell[1])))
    return [
        {"trace": trace, "scheduler": scheduler, "seeds": f"{len(cells[trace, scheduler])}"}
        | {name: _spread(cells[trace, scheduler], *which) for name, which in METRICS.items()}
        for trace, scheduler in order
    ]


def _spread(summaries: list[Summary], key: str, factor: float, digits: int) -> str:
    values = [summary[key] * factor for summary in summaries]
    mean, low, high = sum(values) / len(values), min(values), max(values)
    return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main(folder: str) -> None:
    """Read the sweep's runs in ``folder``, and write the table of means and ranges over seeds."""
    write("traces-seeds", rows(run.summary for run in runs_in(Path(folder) / "runs")))
