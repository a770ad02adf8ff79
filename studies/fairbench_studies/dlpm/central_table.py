"""A comparison of central-dlpm (one queue for the cluster) with d2lpm (a queue per replica).

    python studies central

The script makes the missing runs of the sweep results/tables/central.toml, and writes
results/tables/central.csv.
"""

from __future__ import annotations

from fairbench.results.comparison import SchedulerResults
from fairbench_studies.kit.rows import TABLES
from fairbench_studies.kit.seeds import completed_cells
from fairbench_studies.kit.table_store import write
from fairbench_studies.kit.values import mean_of


def row(cell: SchedulerResults) -> dict[str, str]:
    """Return the table row of a scheduler, with means over the seeds.

    Service and Jain's index cover only the time in which all clients are active.
    """
    one = cell.combined

    def mean(name: str) -> float:
        return mean_of(cell, name) or 0

    return {
        "configuration": f"{one['workload']} {one['scenario']}, {one['dp']} replicas",
        "scheduler": f"`{one['scheduler']}`",
        "service, tok/s": f"{mean('service_rate_paper_window_tok_s'):,.0f}",
        "hit rate": f"{100 * mean('cache_hit_rate'):.0f}%",
        "Jain": f"{mean('jain_index_paper_window'):.2f}",
        "lowest share while waiting": f"{100 * mean('min_backlogged_share'):.0f}%",
        "P95, s": f"{mean('victim_p95_s'):.1f}",
    }


def main() -> None:
    """Simulate the missing runs, and write the table of central schedulers."""
    _, cells = completed_cells(str(TABLES / "central.toml"))
    order = [row(cell) for cell in cells]
    write("central", sorted(order, key=lambda one: one["configuration"]))
