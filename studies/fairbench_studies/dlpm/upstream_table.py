"""A comparison of DLPM with three rules that rank calls by their position in the program.

    python studies upstream

The script makes the missing runs of the sweep results/tables/upstream.toml, and writes
results/tables/upstream.csv.
"""

from __future__ import annotations

from fairbench.results.comparison import SchedulerResults
from fairbench_studies.kit.rows import TABLES
from fairbench_studies.kit.seeds import completed_cells, value_at
from fairbench_studies.kit.table_store import write
from fairbench_studies.kit.values import mean_of

FIRST = {
    None: "longest cached prefix (`dlpm`)",
    "calls_left": "most calls left",
    "depth": "shortest chain of calls before",
    "few_left": "fewest calls left",
}
"""The call that goes first, for each value of ``dlpm-upstream.upstream``."""


def row(cell: SchedulerResults) -> dict[str, str]:
    """Return the table row of a rule that ranks calls, with means over the seeds."""
    rule = value_at(cell.runs[0].experiment, "settings.dlpm-upstream.upstream")
    if "upstream" in cell.combined["scheduler"]:
        rule = rule or "calls_left"
    percent = {name: f"{100 * (mean_of(cell, name) or 0):.0f}%" for name in SHARES}
    return {
        "configuration": f"{cell.combined['workload']} {cell.combined['scenario']}",
        "first among the calls of clients in credit": FIRST[rule],
        "service, tok/s": f"{mean_of(cell, 'service_rate_tok_s') or 0:,.0f}",
        "hit rate": percent["cache_hit_rate"],
        "min. fair share": percent["min_entitlement_ratio"],
        **{head: f"{mean_of(cell, name) or 0:,.0f}" for head, name in TIMES.items()},
    }


SHARES = ("cache_hit_rate", "min_entitlement_ratio")
TIMES = {"P50 of a program, s": "victim_p50_s", "P95, s": "victim_p95_s"}


def main() -> None:
    """Simulate the missing runs, and write the table of rules that rank calls."""
    _, cells = completed_cells(str(TABLES / "upstream.toml"))
    order = [row(cell) for cell in cells]
    write("upstream", sorted(order, key=lambda one: one["configuration"]))
